"""Replay of a journal against code: would this code do what that journal did?

The code runs in a fresh tree in memory, whose ports answer from the journal. A model request gets the recorded reply, a
tool call the recorded answer: no model is asked, and no tool runs. Every run of that tree records its steps as usual,
and each step is compared with the journal as it is recorded. The engine is the one that wrote the journal.

The other way, to copy the journal into a store and resume its root with the new code, was not taken: a resumed run
continues from its recorded messages and asks for nothing again, so that changed code would not be compared at all.
"""
