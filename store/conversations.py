"""What was said besides a task's own question: in its session before it, and to it while it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

__all__ = ["TURNS", "Earlier", "SaidTo", "earlier_that_fit", "said_to_that_fit"]

Statement = tuple[str, Sequence[Any] | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SaidTo:
    """A message to the task, in its place: right before step `at_step`."""

    number: int
    content: str
    at_step: int


@dataclass(frozen=True, slots=True)
class Earlier:
    """Something said in the task's session before it; `number` is that of the turn."""

    number: int
    role: str
    content: str


#: Turns of a session in the order they were said: what was asked, the answers that did not end its
#: task and what was said to that, each in its place, and the last answer. `of` are their messages.
TURNS = """
    select m.number, 0 as place, 0 as nth, 'user' as role, m.content from of m
    union all
    select m.number, 2 * s.step + 1, 0, 'assistant', s.text from of m
      join steps s on s.organisation_id = m.organisation_id and s.task_id = m.task_id
     where s.answered and s.text <> ''
    union all
    select m.number, 2 * x.at_step, x.number, 'user', x.content from of m
      join task_messages x on x.organisation_id = m.organisation_id and x.task_id = m.task_id
     where x.at_step is not null
    union all
    select m.number, 2147483647, 0, 'assistant', t.answer from of m
      join tasks t on t.organisation_id = m.organisation_id and t.task_id = m.task_id
     where t.status = 'succeeded' and t.answer <> ''
"""

_EARLIER = f"""
with of as (
    select m.organisation_id, m.number, m.content, m.task_id
      from tasks t
      join session_messages m on m.organisation_id = t.organisation_id
                             and m.session_id = t.session_id and m.number < t.session_number
     where t.organisation_id = %(org)s and t.task_id = %(task)s
     order by m.number desc limit %(most)s
), said as ({TURNS})
select number, role, content
  from (select said.*, sum(octet_length(content))
                       over (order by number desc, place desc, nth desc
                             rows unbounded preceding) as so_far from said) read
 where so_far <= %(bytes)s
 order by number, place, nth
"""

# The newest one is read whatever its size: it must be seen, or the prompt is too long.
_SAID_TO = """
select number, content, at_step
  from (select n.*, sum(octet_length(content)) over (order by number desc
                        rows unbounded preceding) - octet_length(content) as newer
          from (select number, content, at_step from task_messages
                 where organisation_id = %(org)s and task_id = %(task)s and at_step is not null
                 order by number desc limit %(most)s) n) read
 where newer <= %(bytes)s
 order by number
"""


def earlier_that_fit(organisation_id: UUID, task_id: UUID, *, most: int, size: int) -> Statement:
    """The statement that reads `Earlier`: the newest `most`, up to `size` bytes together."""
    bound = {"org": organisation_id, "task": task_id, "most": most, "bytes": size}
    return _EARLIER, bound


def said_to_that_fit(organisation_id: UUID, task_id: UUID, *, most: int, size: int) -> Statement:
    """The statement that reads `SaidTo`: the newest `most`, up to `size` bytes together."""
    bound = {"org": organisation_id, "task": task_id, "most": most, "bytes": size}
    return _SAID_TO, bound
