"""How `headgate scheduler` tells its worker processes what to run."""

CONFIG = "HEADGATE_SCHEDULER_FILE"
URL = "HEADGATE_SCHEDULER_URL"
