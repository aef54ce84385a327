"""The files that describe agents: definitions, skills, instructions, memory, and the trust in a folder."""
