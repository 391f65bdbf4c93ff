"""Web Push: rules, the server's key, and sending one message to one device."""
