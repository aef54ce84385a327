"""The services over HTTP: routes, streams of events, and the OpenAPI document that is made of the same tables."""
