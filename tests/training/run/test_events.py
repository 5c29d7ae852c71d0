"""When a run logs or evaluates."""

from hyla.training.run.events import Events


def test_events_are_the_multiples_of_the_periods_and_the_last_step():
    events = Events(steps=11, periods=(4, 6))
    expected = [4, 6, 8, 11]
    assert [step for step in range(12) if step in events] == expected
    assert [events.after(step) for step in range(11)] == [
        next(event for event in expected if event > step) for step in range(11)
    ]
