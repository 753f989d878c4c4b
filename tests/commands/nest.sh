# First: leave a nest of processes that do not want to die, and stay. Later, or when asked to
# look: say which of them are alive.
pids=$TRAIL.pids
if [ "$RUN_ATTEMPT" -gt 1 ] || [ "$1" = look ]; then
    for pid in $(cat "$pids"); do
        if grep -q '^State:.[^Z]' "/proc/$pid/status" 2>/dev/null; then echo "alive $pid"; fi
    done
    echo looked
    exit 0
fi
trap '' TERM HUP INT
stay='trap "" TERM HUP INT; echo $$ >> '$pids'; while :; do sleep 600; done'
sh -c "$stay" &
setsid sh -c "$stay" &
env -i /usr/bin/setsid /bin/sh -c "$stay" &
echo $$ >> "$pids"
while [ "$(wc -l < "$pids")" -lt 4 ]; do sleep 0.01; done
echo nested
while :; do sleep 600; done
