"""Reads the calendar feed of this file with the package icalendar; prints its events as JSON."""

import json
import sys

import icalendar

with open(sys.argv[1], "rb") as feed:
    calendar = icalendar.Calendar.from_ical(feed.read())
events = []
for event in calendar.walk("VEVENT"):
    assert not event.errors, event.errors
    events.append(
        {
            "uid": str(event["UID"]),
            "sequence": int(event["SEQUENCE"]),
            "status": str(event["STATUS"]),
            "summary": str(event["SUMMARY"]),
            "description": str(event["DESCRIPTION"]),
            "start": int(event["DTSTART"].dt.timestamp()),
            "end": int(event["DTEND"].dt.timestamp()),
            "zone": str(event["DTSTART"].dt.tzinfo),
            "alarms": [int(alarm["TRIGGER"].dt.total_seconds()) for alarm in event.walk("VALARM")],
        }
    )
print(json.dumps({"name": str(calendar["X-WR-CALNAME"]), "events": events}))
