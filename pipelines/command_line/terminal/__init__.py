"""What commands share: tables, check lists, events of peers as lines."""
