"""What may make an event of a story memorable: its predictors, one row per event.

None of these needs to know who recalled it, except whether the person pressed at its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.analysis.story_recall import StoryRecall
from workbench.core.boundaries import Boundaries
from workbench.core.errors import InputError
from workbench.core.story import Story
from workbench.core.trace import Trace
from workbench.stories.consensus import people_presses

__all__ = ["event_predictors", "recall_table"]


def event_predictors(
    story: Story,
    events: Boundaries,
    trace: Trace | None = None,
    *,
    condition: str | None = None,
    window: float = 2.0,
    first_words: int = 3,
) -> pd.DataFrame:
    """Predictors of the recall of each event.

    Parameters
    ----------
    story : the story; presses and word times where `boundary` is wanted.
    events : over its words.
    trace : of a model on this story, for surprisal; None: NaN.
    condition : of the presses; None: "clear" where there is such a condition, else all.
    window : seconds; a person marks the start of an event by a press at most this far from the
        onset of its first word.
    first_words : how many words count as the start of an event.

    Returns
    -------
    event (from 1), start, n_words, log_words (log2), position (0 first event ... 1 last),
    position_squared ((2·position - 1)², 1 at both ends), boundary (share of people who mark the
    event's start; NaN for the first event, whose start is that of the recording, and without
    presses), surprisal (mean over the event's words, nats per word), onset_surprisal (mean over
    its first words).

    Raises
    ------
    InputError : events or trace of another story, a window or number of words below its least.
    """
    if events.unit != "word" or events.n != story.n_words:
        raise InputError(
            f"events are over {events.n} {events.unit}s, and story {story.name!r} has "
            f"{story.n_words} words; a model's events become words by trace.to_words(events)."
        )
    if not window > 0:
        raise InputError(f"window={window} must be a positive number of seconds.")
    if first_words < 1:
        raise InputError(f"first_words={first_words} must be at least 1.")
    n = events.n_events
    place = np.arange(n) / max(1, n - 1)
    mean = onset = np.full(n, np.nan)
    if trace is not None:
        mean, onset = _surprisal(story, events, trace, first_words)
    return pd.DataFrame(
        {
            "event": np.arange(1, n + 1),
            "start": events.starts,
            "n_words": events.lengths,
            "log_words": np.log2(events.lengths),
            "position": place,
            "position_squared": (2 * place - 1) ** 2,
            "boundary": _marked(story, events, condition, window).mean(axis=0),
            "surprisal": mean,
            "onset_surprisal": onset,
        }
    )


def recall_table(
    recall: StoryRecall,
    stories: Story | Iterable[Story],
    traces: Trace | Iterable[Trace] | None = None,
    *,
    condition: str | None = None,
    window: float = 2.0,
    first_words: int = 3,
) -> pd.DataFrame:
    """Recall of every event by every person, with the event's predictors.

    Parameters
    ----------
    recall : scored transcripts.
    stories : those that were retold.
    traces : of one model on them, for surprisal.
    condition, window, first_words : as in `event_predictors`.

    Returns
    -------
    The rows of `recall.events` with the columns of `event_predictors` and `pressed`: 1 where this
    person marked the event's start (NaN for the first event, and for one of whom no press in this
    story is known).

    Raises
    ------
    InputError : a story is missing, or a trace is of none of the stories.
    """
    known = {s.name: s for s in ([stories] if isinstance(stories, Story) else stories)}
    given = [traces] if isinstance(traces, Trace) else list(traces or ())
    by_name: Mapping[str, Trace] = {trace.story.name: trace for trace in given}
    missing = sorted(set(recall.boundaries) - set(known))
    if missing:
        raise InputError(f"story {missing[0]!r} was recalled; give it in stories=.")
    lacking = sorted(set(recall.boundaries) - set(by_name)) if given else []
    if lacking:
        raise InputError(
            f"traces has none of story {lacking[0]!r} (it has: {', '.join(sorted(by_name))})."
        )
    frames = []
    for name, cut in recall.boundaries.items():
        story = known[name]
        own = recall.events[recall.events["story"] == name]
        predictors = event_predictors(
            story,
            cut,
            by_name.get(name),
            condition=condition,
            window=window,
            first_words=first_words,
        )
        pressed = _pressed(story, cut, window)
        joined = own.merge(predictors.drop(columns=["start", "n_words"]), on="event", how="left")
        frames.append(joined.merge(pressed, on=["subject", "event"], how="left"))
    return pd.concat(frames, ignore_index=True)


def _surprisal(
    story: Story, events: Boundaries, trace: Trace, first_words: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if trace.n_words != story.n_words:
        raise InputError(
            f"the trace has {trace.n_words} words, and story {story.name!r} has {story.n_words}; "
            "record this story."
        )
    values = trace.words()["surprisal"].to_numpy(dtype=np.float64)
    mean = [_mean(values[a:b]) for a, b in events]
    onset = [_mean(values[a : min(b, a + first_words)]) for a, b in events]
    return np.array(mean), np.array(onset)


def _mean(values: NDArray[np.float64]) -> float:
    """Mean of the values that are known: the first word of a text may have no surprisal."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def _marked(
    story: Story, events: Boundaries, condition: str | None, window: float
) -> NDArray[np.float64]:
    """Who marked the start of which event, (people, n_events); the first event NaN.

    One row of NaN where the story has no presses or no times.
    """
    if not _has_presses(story):
        return np.full((1, events.n_events), np.nan)
    presses, _, n_people, _ = people_presses(story, condition)
    _, marked = _marks(story, events, presses, window)
    # People who never pressed are in no row of the table, and count.
    silent = np.zeros((max(0, n_people - len(marked)), events.n_events))
    silent[:, 0] = np.nan
    return np.concatenate([marked, silent])


def _pressed(story: Story, events: Boundaries, window: float) -> pd.DataFrame:
    """subject, event, pressed; of everybody who pressed, in whatever condition."""
    if not _has_presses(story):
        return pd.DataFrame(
            {"subject": pd.Series(dtype=str), "event": pd.Series(dtype=np.int64), "pressed": []}
        )
    subjects, marked = _marks(story, events, story.presses, window)
    return pd.DataFrame(
        {
            "subject": np.repeat(np.array(subjects, dtype=object), events.n_events),
            "event": np.tile(np.arange(1, events.n_events + 1), len(subjects)),
            "pressed": marked.ravel(),
        }
    ).astype({"subject": str})


def _has_presses(story: Story) -> bool:
    return story.has_times and any(
        a.kind == "people" and a.presses is not None for a in story.annotations
    )


def _marks(
    story: Story, events: Boundaries, presses: pd.DataFrame, window: float
) -> tuple[list[str], NDArray[np.float64]]:
    onsets = story.words["onset"].to_numpy(dtype=np.float64)[events.starts]
    subjects = list(dict.fromkeys(presses["subject"].astype(str)))
    marked = np.zeros((len(subjects), events.n_events))
    for row, subject in enumerate(subjects):
        times = presses.loc[presses["subject"].astype(str) == subject, "time"].to_numpy(np.float64)
        near = np.abs(times[:, None] - onsets[None, :]) <= window
        marked[row] = near.any(axis=0)
    marked[:, 0] = np.nan
    return subjects, marked
