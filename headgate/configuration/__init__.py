"""Jobs as files: headgate.toml and dsari's JSON and YAML, read, checked, and run.

`reading` turns files into plain data, `checking` into a `Scheduled` configuration with every
problem named by its place, `building` into an app; `running` is what a scheduler does beside
its jobs. The names users meet are those of the files.
"""
