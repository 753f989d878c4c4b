"""What every store can do, as operations of the domain, each with a parameter object.

The protocol is synchronous and thread-safe: any thread may call any operation. Faces that
are asynchronous run it in threads. Each operation is one transaction: it happens whole, or
raises a `StoreError` and changes nothing.

`tests/conformance` is run against every store.
"""

from headgate.stores.protocol.bells import Bell, Order, Unattended
from headgate.stores.protocol.catalogue import CapSpec, LimitUse, Publication, TaskSpec
from headgate.stores.protocol.claims import Chain, Claim, Exchange, Exchanged, Passed, QueueShare
from headgate.stores.protocol.costs import Costs, LedgerRecord, Price
from headgate.stores.protocol.limits import (
    LimitChange,
    LimitRecord,
    SlotRecord,
    SlotRequest,
    Word,
    Words,
)
from headgate.stores.protocol.looking import EventRecord, QueueRecord, Sweep, Trouble, Why
from headgate.stores.protocol.outputs import Output, OutputPiece, OutputRecord
from headgate.stores.protocol.schedules import (
    Due,
    ScheduleRecord,
    Schedules,
    ScheduleSpec,
    Tick,
    Ticking,
    TickOutcome,
    TickRecord,
)
from headgate.stores.protocol.store import Capabilities, Store
from headgate.stores.protocol.watching import (
    LOOKED_AT,
    Ended,
    EndRecord,
    GroupLoad,
    GroupPage,
    JobPage,
    LanePage,
    LanePlace,
    LaneRecord,
    LaneWalk,
    LimitLoad,
    LimitPage,
)
from headgate.stores.protocol.workers import NewWorker, Registration, WorkerRecord

__all__ = [
    "LOOKED_AT",
    "Bell",
    "CapSpec",
    "Capabilities",
    "Chain",
    "Claim",
    "Costs",
    "Due",
    "EndRecord",
    "Ended",
    "EventRecord",
    "Exchange",
    "Exchanged",
    "GroupLoad",
    "GroupPage",
    "JobPage",
    "LanePage",
    "LanePlace",
    "LaneRecord",
    "LaneWalk",
    "LedgerRecord",
    "LimitChange",
    "LimitLoad",
    "LimitPage",
    "LimitRecord",
    "LimitUse",
    "NewWorker",
    "Order",
    "Output",
    "OutputPiece",
    "OutputRecord",
    "Passed",
    "Price",
    "Publication",
    "QueueRecord",
    "QueueShare",
    "Registration",
    "ScheduleRecord",
    "ScheduleSpec",
    "Schedules",
    "SlotRecord",
    "SlotRequest",
    "Store",
    "Sweep",
    "TaskSpec",
    "Tick",
    "TickOutcome",
    "TickRecord",
    "Ticking",
    "Trouble",
    "Unattended",
    "Why",
    "Word",
    "Words",
    "WorkerRecord",
]
