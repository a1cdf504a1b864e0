"""What only reproduces the tables and figures of papers; nothing else imports it."""
