"""The services over HTTP: routes, streams of events, and the OpenAPI document, all built from the same tables."""
