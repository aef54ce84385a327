CREATE TABLE attempts (
    payment_id      text NOT NULL REFERENCES payments (id),
    number          int NOT NULL,
    idempotency_key uuid NOT NULL,
    outcome         text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (payment_id, number)
);

CREATE INDEX CONCURRENTLY attempts_created_at ON attempts (created_at);
