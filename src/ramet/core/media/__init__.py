"""Images and documents in conversations: by hash in the record, as bytes in a request to a model."""
