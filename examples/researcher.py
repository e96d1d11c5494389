"""An agent that asks its sources several questions at once, and files one report of what it learned.

Killed anywhere, it goes on where it was: nothing is asked again that was answered, and nothing is filed twice.
"""

import asyncio
import datetime
import uuid
from dataclasses import dataclass

from stepwell import Agent, ToolError, step, tool

# They stand for the world: two sources that answer, and a place where reports are kept.
SOURCES = {
    "atlas": {"How high is it?": "4808 metres", "Where is it?": "In the Alps"},
    "almanac": {"How high is it?": "4807 metres, some years"},
}
FILED: dict[str, str] = {}


@dataclass
class Finding:
    source: str
    question: str
    answer: str

    def __str__(self) -> str:
        return f"{self.question} {self.answer} ({self.source})"


@tool
async def ask(source: str, question: str) -> Finding:
    """One question to one source. What is returned is recorded as JSON, and comes back as a Finding."""
    return Finding(source, question, SOURCES[source][question])


# Whether a report was filed when a process dies in the middle, nobody knows. It is not tried again: a person looks.
@tool("reports.file", idempotency="at_most_once")
async def file_report(report_id: str, text: str) -> str:
    FILED[report_id] = text
    return report_id


async def asked(source: str, question: str) -> Finding | None:
    try:
        return await ask(source, question)
    except ToolError:
        # The failure is recorded like a result: a later attempt fails here as well, and does not ask again.
        return None


async def handle(topic: str, questions: list[str]) -> dict[str, str]:
    # The day decides whom to ask, and the id goes into a step: unrecorded, they would be others in the next attempt.
    day = await step("day", lambda: datetime.datetime.now(datetime.UTC).strftime("%A"))
    report_id = await step("report_id", lambda: uuid.uuid4().hex)

    sources = ["atlas"] if day == "Sunday" else ["atlas", "almanac"]
    answers = await asyncio.gather(*(asked(source, question) for question in questions for source in sources))

    text = summary(topic, [answer for answer in answers if answer is not None])
    return {"report": await file_report(report_id, text), "text": text}


def summary(topic: str, findings: list[Finding]) -> str:
    """The same findings make the same summary, so this needs no step."""
    lines = [f"- {finding}" for finding in findings] or ["- nothing was found"]
    return "\n".join([f"{topic}:", *lines])


if __name__ == "__main__":
    Agent("researcher", description="Answers questions about a topic").run(handle)
