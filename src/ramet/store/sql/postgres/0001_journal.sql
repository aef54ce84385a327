-- Names of trees and of runs, once each: events hold integers.
CREATE TABLE {schema}.names (
    id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE {schema}.events (
    cursor bigint  NOT NULL PRIMARY KEY,
    seq    bigint  NOT NULL,
    tree   integer NOT NULL,  -- of the root run: the id of its name
    run    integer NOT NULL,
    type   text COLLATE "C" NOT NULL,
    data   bytea   NOT NULL
);
CREATE INDEX events_of_a_tree ON {schema}.events (tree, cursor);
CREATE INDEX events_of_a_run ON {schema}.events (run, cursor);

-- One row. Whoever writes locks it first, by moving the cursor, until its transaction ends.
CREATE TABLE {schema}.journal (
    only_one boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (only_one),
    cursor   bigint  NOT NULL DEFAULT 0,
    forgets  bigint  NOT NULL DEFAULT 0  -- how often names were removed: ids that were looked up before are void
);
INSERT INTO {schema}.journal DEFAULT VALUES;

CREATE TABLE {schema}.kernels (
    name  text   COLLATE "C" NOT NULL PRIMARY KEY,
    epoch bigint NOT NULL,  -- how often it was opened: whoever holds an older one has been replaced
    batch bigint NOT NULL   -- its newest committed batch
);

CREATE TABLE {schema}.documents (
    kind    text   COLLATE "C" NOT NULL,
    key     text   COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    data    bytea  NOT NULL,
    PRIMARY KEY (kind, key)
);

CREATE TABLE {schema}.blobs (
    name text  COLLATE "C" NOT NULL PRIMARY KEY,
    data bytea NOT NULL
);
