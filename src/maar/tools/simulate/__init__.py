"""`maar simulate`: placement under a made-up load on a virtual clock."""
