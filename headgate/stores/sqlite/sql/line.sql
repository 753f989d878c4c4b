-- The bands there are, in order: hop from one to the next, whatever stands in them.
-- name: bands
WITH RECURSIVE b (cells) AS (
    SELECT (SELECT json_array(queue, priority, band) FROM ready
            ORDER BY queue, priority, band LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT json_array(r.queue, r.priority, r.band) FROM ready r
         WHERE r.queue = json_extract(cells, '$[0]') AND r.priority = json_extract(cells, '$[1]')
           AND r.band > json_extract(cells, '$[2]') ORDER BY r.band LIMIT 1),
        (SELECT json_array(r.queue, r.priority, r.band) FROM ready r
         WHERE r.queue = json_extract(cells, '$[0]') AND r.priority > json_extract(cells, '$[1]')
         ORDER BY r.priority, r.band LIMIT 1),
        (SELECT json_array(r.queue, r.priority, r.band) FROM ready r
         WHERE r.queue > json_extract(cells, '$[0]')
         ORDER BY r.queue, r.priority, r.band LIMIT 1))
    FROM b WHERE cells IS NOT NULL
)
SELECT json_extract(cells, '$[0]') AS queue, json_extract(cells, '$[1]') AS priority,
       json_extract(cells, '$[2]') AS band
FROM b WHERE cells IS NOT NULL
