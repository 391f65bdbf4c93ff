"""The one way out to addresses that users or configuration gave us: `client.Outgoing`."""
