CREATE TABLE payments (
    id         text PRIMARY KEY,
    amount     bigint NOT NULL CHECK (amount > 0),
    currency   char(3) NOT NULL,
    status     text NOT NULL DEFAULT 'pending',
    reference  text,
    created_at timestamptz NOT NULL DEFAULT now()
);
