"""Recordings of the dialogue with a model: written by a recording model, read by a replay model.

A recording is made between ramet and the client of a provider: it has the messages and the names of the tools that
are sent, and the chunks, the message or the error that come back. It has nothing of HTTP. So it has no headers,
survives another version of a provider's SDK, has one form for every provider, and is replayed without the SDK.
"""
