-- Names are kept once. AUTOINCREMENT, so that a number which a reader remembers never stands for another name.
CREATE TABLE trees (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tree INTEGER NOT NULL REFERENCES trees (id),
    name TEXT NOT NULL,
    UNIQUE (name, tree)
);

CREATE TABLE types (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

-- The writer numbers events: cursors are never used twice, not even when the newest events are forgotten.
CREATE TABLE events (
    cursor INTEGER PRIMARY KEY,
    tree INTEGER NOT NULL,
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    type INTEGER NOT NULL,
    data BLOB NOT NULL
);

CREATE INDEX events_of_trees ON events (tree);

CREATE INDEX events_of_runs ON events (run);

-- The newest cursor that was ever forgotten.
CREATE TABLE marks (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE documents (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;

CREATE TABLE blobs (
    name BLOB PRIMARY KEY,
    data BLOB NOT NULL
);
