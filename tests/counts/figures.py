"""What each kind of work costs, side by side for the three stores.

`rows` are written, `pages` are appended to SQLite's write-ahead log, `trips` are round trips,
`scans` are of tables and indexes, and `sent` and `received` are bytes. A write to the bucket sends
the whole ledger, which holds what the test did before.
"""

WORK: dict[str, dict[str, str]] = {
    "submit a job": {
        "sqlite": "statements 7, commits 1, rows 3, pages 4",
        "postgres": "trips 1, statements 2, rows 2, scans 3, sent 239, received 143",
        "bucket": "reads 0, writes 1, lists 0, deletes 0, sent 6684, received 0",
    },
    "submit a job under a limit with a key": {
        "sqlite": "statements 7, commits 1, rows 3, pages 4",
        "postgres": "trips 1, statements 2, rows 2, scans 3, sent 307, received 143",
        "bucket": "reads 0, writes 1, lists 0, deletes 0, sent 11750, received 0",
    },
    "submit 100 jobs": {
        "sqlite": "statements 304, commits 1, rows 201, pages 18",
        "postgres": "trips 8, statements 8, rows 200, scans 2, sent 22077, received 1810",
        "bucket": "reads 0, writes 1, lists 0, deletes 0, sent 230905, received 0",
    },
    "claim and finish a job under no limit": {
        "sqlite": "statements 22, commits 2, rows 5, pages 10",
        "postgres": "trips 2, statements 3, rows 4, scans 15, sent 556, received 847",
        "bucket": "reads 0, writes 2, lists 0, deletes 0, sent 24579, received 0",
    },
    "claim and finish a job under a limit": {
        "sqlite": "statements 26, commits 2, rows 7, pages 14",
        "postgres": "trips 3, statements 4, rows 6, scans 41, sent 801, received 1360",
        "bucket": "reads 0, writes 2, lists 0, deletes 0, sent 29170, received 0",
    },
    "claim and finish a job under a limit with a key": {
        "sqlite": "statements 27, commits 2, rows 7, pages 14",
        "postgres": "trips 3, statements 4, rows 6, scans 41, sent 834, received 1410",
        "bucket": "reads 0, writes 2, lists 0, deletes 0, sent 31304, received 0",
    },
    "5 times, finish 20 jobs and claim 20 under no limit": {
        "sqlite": "statements 655, commits 5, rows 405, pages 44",
        "postgres": "trips 5, statements 10, rows 400, scans 310, sent 6915, received 14435",
        "bucket": "reads 0, writes 5, lists 0, deletes 0, sent 585795, received 0",
    },
    "finish 20 jobs under no limit": {
        "sqlite": "statements 84, commits 1, rows 40, pages 7",
        "postgres": "trips 1, statements 2, rows 40, scans 37, sent 1291, received 711",
        "bucket": "reads 0, writes 1, lists 0, deletes 0, sent 129219, received 0",
    },
    "5 times, finish 20 jobs and claim 20 under a limit": {
        "sqlite": "statements 860, commits 5, rows 605, pages 58",
        "postgres": "trips 5, statements 10, rows 500, scans 429, sent 7050, received 15751",
        "bucket": "reads 0, writes 5, lists 0, deletes 0, sent 827870, received 0",
    },
    "finish 20 jobs under a limit": {
        "sqlite": "statements 104, commits 1, rows 60, pages 9",
        "postgres": "trips 1, statements 2, rows 60, scans 59, sent 1298, received 709",
        "bucket": "reads 0, writes 1, lists 0, deletes 0, sent 181852, received 0",
    },
    "5 times, finish 20 jobs and claim 20 under a limit with a key": {
        "sqlite": "statements 865, commits 5, rows 605, pages 61",
        "postgres": "trips 5, statements 10, rows 500, scans 429, sent 7215, received 18683",
        "bucket": "reads 0, writes 5, lists 0, deletes 0, sent 962410, received 0",
    },
    "finish 20 jobs under a limit with a key": {
        "sqlite": "statements 104, commits 1, rows 60, pages 13",
        "postgres": "trips 1, statements 2, rows 60, scans 59, sent 1302, received 709",
        "bucket": "reads 0, writes 1, lists 0, deletes 0, sent 210872, received 0",
    },
    "5 times, finish 20 jobs and claim 20 under both limits": {
        "sqlite": "statements 965, commits 5, rows 805, pages 61",
        "postgres": "trips 5, statements 10, rows 600, scans 534, sent 7370, received 20095",
        "bucket": "reads 0, writes 5, lists 0, deletes 0, sent 1197705, received 0",
    },
    "finish 20 jobs under both limits": {
        "sqlite": "statements 104, commits 1, rows 80, pages 13",
        "postgres": "trips 1, statements 2, rows 80, scans 79, sent 1302, received 709",
        "bucket": "reads 0, writes 1, lists 0, deletes 0, sent 262196, received 0",
    },
    "5 times, finish 20 jobs and claim 20 under one of two limits": {
        "sqlite": "statements 860, commits 5, rows 605, pages 64",
        "postgres": "trips 5, statements 10, rows 500, scans 444, sent 7290, received 15931",
        "bucket": "reads 0, writes 5, lists 0, deletes 0, sent 912570, received 0",
    },
    "finish 20 jobs under one of two limits": {
        "sqlite": "statements 104, commits 1, rows 60, pages 9",
        "postgres": "trips 1, statements 2, rows 60, scans 59, sent 1298, received 711",
        "bucket": "reads 0, writes 1, lists 0, deletes 0, sent 199464, received 0",
    },
    "take a slot": {
        "sqlite": "statements 10, commits 1, rows 2, pages 4",
        "postgres": "trips 1, statements 1, rows 1, scans 7, sent 120, received 172",
        "bucket": "reads 1, writes 1, lists 0, deletes 0, sent 8119, received 0",
    },
    "extend a slot": {
        "sqlite": "statements 4, commits 1, rows 1, pages 2",
        "postgres": "trips 1, statements 1, rows 1, scans 2, sent 73, received 89",
        "bucket": "reads 1, writes 1, lists 0, deletes 0, sent 8335, received 0",
    },
    "give a slot back": {
        "sqlite": "statements 4, commits 1, rows 1, pages 3",
        "postgres": "trips 1, statements 2, rows 1, scans 4, sent 130, received 144",
        "bucket": "reads 1, writes 1, lists 0, deletes 0, sent 8381, received 0",
    },
    "an idle minute": {
        "sqlite": "statements 813, commits 61, rows 0, pages 0",
        "postgres": "trips 537, statements 634, rows 126, scans 1161, sent 42545, received 58380",
        "bucket": "reads 30, writes 6, lists 0, deletes 0, sent 54408, received 0",
    },
}
