"""The files that describe agents: definitions, skills, instructions, memory, and whether a folder is trusted."""
