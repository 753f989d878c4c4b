"""Commands as jobs: programs and shell lines, run under the same limits as any task.

    command   what is to be run, checked at declaration
    task      the task that `app.command(...)` gives
    launch    how a run is begun, with what environment
    ends      exit codes, and why a program could not be started
    running   one run in a worker: environment, output, end
    cell      a warden of commands, seen from the worker
    warden    a small process round one command; nothing of it outlives the run
    tape      what is kept of the output, decided without a store
    scribe    writes the output of all commands of a worker
    output    reads it: all of it, or as it comes

Nothing is imported here: wardens start fast because they import little.
"""
