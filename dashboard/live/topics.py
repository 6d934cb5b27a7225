"""The topics of the live stream, and which of them an entry concerns.

run:<id>    everything about one run
study:<id>  changes of its runs that a study's page shows
runs        changes of any run that the runs list shows
fleet       workers and their devices
search:<id> progress of a search of the analyst
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

FORM = re.compile(r"run:[1-9]\d{0,17}|study:[1-9]\d{0,17}|search:[1-9]\d{0,17}|runs|fleet")
MAX_TOPICS = 100
EVERYTHING = "*"
"""In place of names of changes: too much has changed to list; the page fetches all that it shows."""

# A list of a thousand runs does not show what every rank of each run is doing.
OF_STUDIES = frozenset({"state", "points", "spans", "memory", "summary"})
OF_LISTS = frozenset({"state", "points", "summary"})


def parse_topics(text: str) -> frozenset[str]:
    """Parses topics separated by commas. Raises ValueError with a message for the user."""
    topics = frozenset(filter(None, text.split(",")))
    wrong = sorted(topic for topic in topics if not FORM.fullmatch(topic))
    if wrong:
        raise ValueError(f"no such topic: {wrong[0][:40]!r}; use run:<id>, study:<id>, search:<id>, runs or fleet")
    if not 1 <= len(topics) <= MAX_TOPICS:
        raise ValueError(f"name 1 to {MAX_TOPICS} topics, got {len(topics)}")
    return topics


def topics_of(fields: Mapping[bytes, bytes]) -> dict[str, set[str]]:
    """topic -> what changed, for one entry of the LIVE stream; {} if the entry cannot be read."""
    try:
        what = {str(item) for item in json.loads(fields[b"what"])}
        run, study, search = (fields.get(name, b"").decode() for name in (b"run", b"study", b"search"))
    except (KeyError, ValueError, TypeError):
        return {}
    if search:
        return {f"search:{search}": what}
    if not run:
        return {"fleet": what}
    out = {f"run:{run}": what, "runs": what & OF_LISTS}
    if study:
        out[f"study:{study}"] = what & OF_STUDIES
    # When a run starts or ends, the use of devices changes.
    if "state" in what:
        out["fleet"] = {"state"}
    return {topic: changed for topic, changed in out.items() if changed}
