"""`omnihear transcribe`: files through a service, which may be one that is started for them."""
