"""Counts who held and used GPUs from an export of the audit log alone, and compares with `fleet usage --json`.

It follows each GPU by the events that give it to a holder and release it. It does not read the stays that those events hold.
What nodes measured counts for the holder, each hour for no more than the holder had its GPUs.
Both files are arguments. Prints what it counted; ends with 1 where the two differ.
"""

import datetime
import json
import sys


def milliseconds(text):
    at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return (at - epoch) // datetime.timedelta(milliseconds=1)


with open(sys.argv[1], encoding="utf-8") as export:
    records = [record for record in map(json.loads, export) if "events" in record]
with open(sys.argv[2], encoding="utf-8") as report:
    rows = json.load(report)["items"]
begin, end = milliseconds(rows[0]["from"]), milliseconds(rows[0]["until"])

HOUR = 3_600_000
# Holder and hour: what was measured, and what of that was busy.
measured = {}

# GPU and holder: owner, kind, since when. A reservation is there before the jobs within it.
open_stays = {}
over = []


def take(gpu, holder, owner, kind, at):
    open_stays.setdefault((gpu, holder), (owner, kind, at))


def release(gpu, holder, at):
    stay = open_stays.pop((gpu, holder), None)
    if stay:
        over.append((*stay, at, holder))


def reserved(gpu):
    return any(of == gpu and stay[1] == "reserved" for (of, _), stay in open_stays.items())


for record in records:
    for event in record["events"]:
        ((name, what),) = event.items() if isinstance(event, dict) else ((event, {}),)
        at = record["at"]
        if name in ("job_placed", "attempt_adopted"):
            for gpu in what["gpus"]:
                kind = "in_jobs" if reserved(gpu) else "jobs"
                take(gpu, what["allocation"], what["owner"], kind, at)
        elif name == "reservation_started":
            for gpu in what["gpus"]:
                take(gpu, what["reservation"], what["owner"], "reserved", at)
        elif name == "window_opened_by_node":
            for gpu in what["gpus"]:
                take(gpu, what["reservation"], what["owner"], "reserved", what["at"])
        elif name == "gpu_use_measured":
            for row in what["rows"]:
                (holder,) = row["holder"].values()
                key = (row.get("within") or holder, what["from"] // HOUR)
                sums = measured.setdefault(key, [0, 0])
                sums[0] += row["measured_ms"]
                sums[1] += row["busy_ms"]
        elif name == "gpus_released":
            for gpu in what["gpus"]:
                release(gpu, what["holder"], at)

over.extend((*stay, end, holder) for (_, holder), stay in open_stays.items())



def overlap(since, until, hour):
    return max(0, min(until, (hour + 1) * HOUR) - max(since, hour * HOUR))


# Holder and hour: GPU-milliseconds of it, and those in the window. Its owner is the same in all of its stays.
held, owners = {}, {}
for owner, kind, since, until, holder in over:
    if kind == "in_jobs":
        continue
    owners[holder] = owner
    for hour in range(since // HOUR, until // HOUR + 1):
        sums = held.setdefault((holder, hour), [0, 0])
        sums[0] += overlap(since, until, hour)
        sums[1] += overlap(max(since, begin), min(until, end), hour)

used = {}
for (holder, hour), (seen, busy) in measured.items():
    whole, asked = held.get((holder, hour), (0, 0))
    if whole:
        for row in (owners[holder], None):
            sums = used.setdefault(row, [0, 0])
            sums[0] += min(seen, whole) * asked // whole
            sums[1] += min(busy, seen, whole) * asked // whole

counted = {}
for owner, kind, since, until, holder in over:
    length = min(until, end) - max(since, begin)
    if length <= 0:
        continue
    if holder.startswith("alloc-"):
        holder = holder.removeprefix("alloc-").rsplit("-", 1)[0]
    for row in (owner, None):
        sums = counted.setdefault(row, {"reserved": 0, "in_jobs": 0, "jobs": 0, "of": [set(), set()]})
        sums[kind] += length
        sums["of"][kind == "reserved"].add(holder)

failures = []
for row in rows:
    owner = None if row["total"] else row["name"]
    sums = counted.pop(owner, {"reserved": 0, "in_jobs": 0, "jobs": 0, "of": [set(), set()]})
    wanted = {
        "reserved_gpu_ms": sums["reserved"],
        "in_jobs_gpu_ms": sums["in_jobs"],
        "jobs_gpu_ms": sums["jobs"],
        "held_gpu_ms": sums["reserved"] + sums["jobs"],
        "used_gpu_ms": used.get(owner, (0, 0))[1],
        "idle_gpu_ms": used.get(owner, (0, 0))[0] - used.get(owner, (0, 0))[1],
        "unknown_gpu_ms": sums["reserved"] + sums["jobs"] - used.get(owner, (0, 0))[0],
        "jobs": len(sums["of"][0]),
        "reservations": len(sums["of"][1]),
    }
    shown = {key: row[key] for key in wanted}
    if shown != wanted:
        failures.append(f"{owner}: fleet says {shown}, the audit log {wanted}")
    if owner is None:
        print(json.dumps(wanted))
failures.extend(f"fleet does not show {owner}: {sums}" for owner, sums in counted.items())
sys.exit("\n".join(failures) if failures else 0)
