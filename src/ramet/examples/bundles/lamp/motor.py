"""Turns the lens."""

from typing import Any


def turn(motor: Any, settings: dict[str, int]) -> None:
    """Start a turn, and wait until the lens is round."""
    motor.start(settings["speed_rpm"])
    if not motor.wait(settings["timeout_ms"]):
        motor.stop()
        raise TimeoutError(f"lens is late: timeout of {settings['timeout_ms']} ms")
