"""The policies: one pure function a file. A policy wishes; gates decide."""
