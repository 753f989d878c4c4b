"""Run: the processes that claim jobs, run them, and leave nothing behind.

guard     the process the user started; outlives all others, needs no store
  keeper    starts worker processes, reports their deaths, sees that they stop in time
    process   one event loop: claimer, runner, sweeper, pruner, pulse
      warden    one per isolated task at a time; cleans up behind it
        ward      runs the code of the isolated task
      warden    of commands, one per run at a time (headgate/commands)

Each warden has a second process round it, in case it is killed (wardship).
"""
