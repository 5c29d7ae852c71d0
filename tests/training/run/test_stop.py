"""Stop requests, with real signals."""

import os
import signal
import threading
import time

import pytest

from hyla.training.run.stop import StopRequest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_sets_the_flag_and_handlers_are_restored(name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop.requested
        assert stop.reason is None
        send(number)
        assert stop.requested
        assert stop.reason == name
    assert signal.getsignal(number) is before


def test_the_second_interrupt_is_immediate() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        send(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_after_another_signal_is_still_the_first() -> None:
    with StopRequest() as stop:
        send(signal.SIGTERM)
        send(signal.SIGINT)
        send(signal.SIGTERM)
        assert stop.reason == "SIGTERM"


def test_the_time_limit() -> None:
    with StopRequest(max_seconds=0.05) as stop:
        assert not stop.requested
        time.sleep(0.06)
        assert stop.requested
        assert stop.reason == "time limit"


def test_another_thread_gets_the_flag_but_no_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def train() -> None:
        with StopRequest() as stop:
            seen.append(signal.getsignal(signal.SIGTERM) is before)
            stop.request("enough")
            seen.append(stop.reason)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen == [True, "enough"]
