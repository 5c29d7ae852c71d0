"""One module per figure or table: what to train and measure for it, its drawing, the claims."""
