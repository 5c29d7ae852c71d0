"""What commands share: options, exit codes, output."""
