-- Each session of a kernel holds an advisory lock of its own, with a number that no other session ever locks alone.
CREATE SEQUENCE {schema}.locks AS bigint;

ALTER TABLE {schema}.kernels
    ADD COLUMN losses  bigint NOT NULL DEFAULT 0,  -- how often trees were taken from it
    ADD COLUMN lock    bigint NOT NULL DEFAULT 0,  -- of its newest session; 0 once it has ended properly
    ADD COLUMN server  timestamptz,                -- when the server began that gave it this lock
    ADD COLUMN address text   NOT NULL DEFAULT '';

-- The trees that a kernel has: those that are over have no row.
CREATE TABLE {schema}.trees (
    name   text   COLLATE "C" NOT NULL PRIMARY KEY,
    kernel text   COLLATE "C" NOT NULL,
    epoch  bigint NOT NULL  -- the how-many-th kernel has it
);
CREATE INDEX trees_of_a_kernel ON {schema}.trees (kernel);

-- One row: since when kernels have been seen on the server as it runs now. It lost all locks when it began.
CREATE TABLE {schema}.server (
    only_one boolean     NOT NULL PRIMARY KEY DEFAULT true CHECK (only_one),
    began    timestamptz NOT NULL,
    since    timestamptz NOT NULL
);
INSERT INTO {schema}.server (began, since) VALUES (pg_postmaster_start_time(), clock_timestamp());
