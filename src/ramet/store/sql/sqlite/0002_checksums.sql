-- Of an event's row; NULL for events of version 1.
ALTER TABLE events ADD COLUMN checksum INTEGER;
