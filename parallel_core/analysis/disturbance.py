"""When other processes used so much of a run's devices that its times say less, or nothing.

Shares are of the device that others used most in the timed steps (`cpu_others` of a run's summary, 0 .. 1).
"""

DISTURBED_ABOVE = 0.10
"""The measurement is drawn cross-hatched, settles no prediction, and is offered to be run again."""
UNTRUSTED_ABOVE = 0.25
"""Rules that judge by times are not asked: every ratio between runs may be off by as much. Ranks that wait give their
device away, so that single per cents are noise."""
