"""The layers of the sandbox and of what is around it, each with the change of the source that removes it.

To add a layer, add a row: its name, a file below src/ramet, words that occur once in that file, and what replaces them.
`tests` name the tests that must notice: "files" is tests/security/test_attacks_files.py, played against the kernel that
`kernel` names; what has a slash is a path below tests, which may go on with "::" and the name of a test.
"""

from __future__ import annotations

from typing import NamedTuple

ME, ORDINARY, LOCAL, BARE = "me-bwrap", "ordinary-bwrap", "me-local", "bare-local"


class Edit(NamedTuple):
    """Words that occur once in a file, and what replaces them."""

    file: str
    words: str
    instead: str


class Mutant(NamedTuple):
    """A layer, and the edit that removes it."""

    layer: str
    file: str
    words: str
    instead: str
    kernel: str = ME  #: of the attacks in `tests`
    tests: tuple[str, ...] = ("files", "processes", "network", "resources")
    also: tuple[Edit, ...] = ()  #: further edits, where a second layer checks the first

    @property
    def edits(self) -> tuple[Edit, ...]:
        """All edits that remove the layer."""
        return Edit(self.file, self.words, self.instead), *self.also


LINUX, CHILD, CONFINE = "isolation/linux", "isolation/child.py", "isolation/confine.py"
CHANNEL, SPAWNING = ("channel",), ("spawning",)
FILES, PROCESSES, NETWORK, RESOURCES = ("files",), ("processes",), ("network",), ("resources",)
KEYS, QUESTIONS = ("architecture/test_secret_comparison.py",), ("security/test_approvals_inside.py",)

MOUNTS, METADATA = ("security/test_mount_links.py",), ("security/test_attacks_metadata.py",)
KERNEL_MEMORY, UNREAD = ("security/test_attacks_kernel_memory.py",), ("security/test_slow_consumers.py",)
REPOSITORY, STATE = ("security/test_hostile_repository.py",), ("security/test_hostile_state_folder.py",)
COMMANDS = ("security/test_hostile_state_commands.py::test_a_store_refuses_planted_files_beside_it",)
IRREGULAR = ("unit/isolation/test_git_irregular.py",)
BUNDLES = ("unit/services/test_bundle_bounds.py",)
LOST_KEYS = ("trips/test_lost_keys.py",)
STEPS = ("unit/agent/test_steps.py",)
AT_REST, TEAM = ("security/test_values_at_rest.py",), ("security/test_team_key.py",)


def _layer(test: str) -> tuple[str, ...]:
    """A test that looks at a layer by itself, since another one backs it."""
    return (f"security/test_layers.py::{test}",)


def _types(test: str) -> tuple[str, ...]:
    """A test of the bounds of types and their values."""
    return (f"unit/agent/test_typed_bounds.py::test_{test}",)


GROUPS = _layer("test_a_run_is_in_a_control_group_with_its_limit")
UNMAPPED = _layer("test_memory_that_belongs_to_no_process_is_refused_where_nothing_counts_it")

MUTANTS = (
    # ---- the gates of a process
    Mutant("seccomp", CONFINE, "        if self.programs:\n", "        if False:\n"),
    Mutant("seccomp: namespace flags of clone", f"{LINUX}/seccomp.py",
           "*_argument(0, _NEW_NAMESPACE | _CLONE_PARENT), *_only((0,), deny)",
           "*_return(_ALLOW)", tests=PROCESSES),
    Mutant("seccomp: processes beside their maker", f"{LINUX}/seccomp.py", "_NEW_NAMESPACE | _CLONE_PARENT",
           "_NEW_NAMESPACE", tests=PROCESSES),
    Mutant("seccomp: clone3 unknown", f"{LINUX}/seccomp.py", 'number["clone3"], _return(_ERRNO | errno.ENOSYS)',
           'number["clone3"], _return(_ALLOW)', tests=PROCESSES),
    Mutant("seccomp: families of sockets", f"{LINUX}/seccomp.py", '_sockets(inet, unix, served, no_family))',
           "_return(_ALLOW))", tests=NETWORK),
    Mutant("seccomp: terminals", f"{LINUX}/seccomp.py", "*_argument(1), *_none_of(_IOCTLS.values(), deny)",
           "*_return(_ALLOW)", tests=PROCESSES),
    Mutant("seccomp: foreign ABI", f"{LINUX}/seccomp.py", "(_RETURN, 0, 0, _KILL),\n        (_LOAD, 0, 0, _NR)",
           "(_RETURN, 0, 0, _ALLOW),\n        (_LOAD, 0, 0, _NR)", tests=PROCESSES),
    Mutant("Landlock", CONFINE, "            rules.enforce()\n", "", BARE),
    Mutant("Landlock: scopes", f"{LINUX}/landlock.py", "_ABSTRACT_SOCKETS | _SIGNALS if self._kept.scopes else 0", "0",
           BARE, ("processes", "network")),
    Mutant("capabilities", CONFINE, "        caps.drop_all()\n", "", tests=PROCESSES),
    Mutant("no_new_privs", CONFINE, "        calls.set_no_new_privs()\n", "", LOCAL,
           _layer("test_a_program_that_an_agent_starts_gains_no_rights")),
    Mutant("user namespace", CONFINE, "            calls.unshare(calls.CLONE_NEWUSER)\n            ids.map_ids",
           "            (lambda *_: None)", tests=("processes", "resources")),
    Mutant("rlimit: processes", CONFINE, "            nproc=self._nproc(given),\n", "", ORDINARY, RESOURCES),
    Mutant("rlimit: descriptors", CONFINE, "            nofile=_NOFILE,\n", "", tests=RESOURCES),
    Mutant("rlimit: core files", f"{LINUX}/rlimits.py", "        (resource.RLIMIT_CORE, core),\n", "",
           tests=_layer("test_core_files_are_forbidden_where_the_host_allows_them")),
    Mutant("rlimit: private memory", CONFINE,
           "            data=self.baseline + (given.memory_mb + _THREAD_MB * given.pids) * _MIB,\n", "",
           tests=_layer("test_private_memory_of_a_process_is_limited")),
    Mutant("seccomp: memory of no process", f"{LINUX}/seccomp.py", "*(() if unmapped else numbers.UNMAPPED), ", "",
           tests=UNMAPPED),
    Mutant("memory of no process refused without control groups", "isolation/admission.py", "unmapped=False,",
           "unmapped=True,", tests=UNMAPPED),
    Mutant("seccomp: watched folders", CONFINE, "                    watches=room.walls not in SHARED_ROOT,\n", "",
           LOCAL, FILES),
    Mutant("descriptors closed", CHILD, "    calls.close_range(3 + len(low))\n", "", tests=PROCESSES),
    Mutant("environment cleared", CHILD, "    os.environ.clear()\n    os.environ.update(environment(given))\n", "",
           tests=PROCESSES),
    # ---- namespaces and what is mounted in them
    Mutant("network namespace", CHILD, " | calls.CLONE_NEWNET", "", tests=("network", "processes")),
    Mutant("ipc namespace", CHILD, " | calls.CLONE_NEWIPC", "", tests=PROCESSES),
    Mutant("uts namespace", CHILD, " | calls.CLONE_NEWUTS", "", tests=PROCESSES),
    Mutant("cgroup namespace", CHILD, " | calls.CLONE_NEWCGROUP", "", tests=PROCESSES),
    Mutant("pid namespace", "isolation/zygote.py", "                calls.unshare(calls.CLONE_NEWPID)\n", "",
           tests=("processes", "living")),
    Mutant("own /proc", "isolation/furnish.py", '        calls.mount("proc", "/proc", "proc", _FLAGS)\n', "",
           tests=PROCESSES),
    Mutant("other workspaces covered", "isolation/furnish.py", 'for path in ("/run", room.runs):',
           'for path in ("/run",):', tests=_layer("test_workspaces_of_others_are_not_there")),
    Mutant("folder of all workspaces read-only", "isolation/furnish.py",
           "        _restrict(self._room.runs, calls.MS_RDONLY)\n", "",
           tests=_layer("test_the_folder_of_all_workspaces_cannot_be_written")),
    Mutant("nosuid and nodev on a workspace", "isolation/furnish.py",
           "_restrict(given.workspace, calls.MS_NOSUID | calls.MS_NODEV, off=calls.MS_RDONLY)",
           "_restrict(given.workspace, 0, off=calls.MS_RDONLY)", LOCAL,
           _layer("test_programs_and_devices_in_a_workspace_have_no_effect"),
           # A read-only root is nosuid and nodev as well, and the workspace is bound from it.
           also=(Edit("isolation/launch.py", "    if is_read_only:  # Before", "    if False:  # Before"),)),
    Mutant("size of a tmpfs", "isolation/furnish.py",
           'return f"size={size_mb}m,nr_inodes={4096 + size_mb * _FILES_PER_MIB}"',
           'return "size=4g"', tests=RESOURCES),
    Mutant("read-only root", "isolation/bubblewrap.py", '"--remount-ro", "/dev", "--remount-ro", "/"]', "]",
           tests=FILES),
    Mutant("read-only root of local", "isolation/launch.py", "    if is_read_only:  # Before",
           "    if False:  # Before",
           LOCAL, METADATA),
    Mutant("links below a grant", f"{LINUX}/beneath.py",
           "_RESOLVE = calls.RESOLVE_BENEATH | calls.RESOLVE_NO_SYMLINKS | calls.RESOLVE_NO_MAGICLINKS", "_RESOLVE = 0",
           tests=MOUNTS),
    Mutant("mounts compared after the bind", "isolation/zygote.py",
           "        if [found.st_dev, found.st_ino] != list(identity):\n", "        if False:\n",
           tests=("unit/isolation/test_zygote_mounts.py",)),
    Mutant("private trees by their real path", "isolation/mounts.py",
           "        if reason := _objection(source, runs):\n",
           '        if reason := "":\n', tests=MOUNTS),
    Mutant("the kernel's folder covered in a mount", "isolation/furnish.py", "        for path in found:",
           "        for path in []:", tests=MOUNTS),
    Mutant("folders of other kernels searched for", "isolation/forking.py",
           "            given = given._replace(hidden=hidden)\n", "", tests=MOUNTS),
    # ---- the zygote and its start
    Mutant("uid dropped", "isolation/launch.py", "    if launch.uid is not None and launch.gid is not None:\n",
           "    if False:\n",
           tests=PROCESSES),
    Mutant("uid dropped, and not looked at", "isolation/forking.py", "        if os.geteuid() != 0:\n",
           "        if True:\n", tests=PROCESSES, also=(Edit("isolation/launch.py",
           "    if os.getuid() == 0 or os.geteuid() == 0:\n", "    if False:\n"),)),
    Mutant("empty environment of the launcher", "isolation/lifeline.py", "            env={},\n", "",
           tests=_layer("test_the_program_that_starts_sandboxes_gets_no_environment")),
    Mutant("control groups", "isolation/forking.py", "Cgroups.open(self._prefix)", "None",
           tests=GROUPS),
    Mutant("control group: memory", "isolation/cgroup.py", "if memory_mb is not None and (folder",
           "if False and (folder", tests=GROUPS),
    Mutant("control group: processor", "isolation/cgroup.py", "if cpu_cores is not None and (folder",
           "if False and (folder", tests=GROUPS),
    Mutant("control group: processes", "isolation/cgroup.py", "if pids is not None and (folder",
           "if False and (folder", tests=GROUPS),
    Mutant("limits of a control group are the run's", "isolation/forking.py",
           "            if _limits(grant) != _limits(DEFAULTS):\n", "            if False:\n", tests=GROUPS),
    Mutant("watchdog", "isolation/forking.py", "        with contextlib.suppress(Gone):\n            return self._dog",
           "        with contextlib.suppress(Gone):\n            return None and self._dog", ORDINARY, RESOURCES),
    Mutant("seccomp: sizes of socket buffers", f"{LINUX}/seccomp.py",
           '    code += _when(number["setsockopt"], _options())\n', "", tests=KERNEL_MEMORY),
    Mutant("seccomp: pages that a pipe pins", f"{LINUX}/seccomp.py", "for name in numbers.PINNING:", "for name in ():",
           ORDINARY, KERNEL_MEMORY),
    Mutant("seccomp: large shared areas", f"{LINUX}/seccomp.py",
           '        code += _when(number["mmap"], _areas(_ERRNO | errno.ENOMEM))\n', "", ORDINARY, KERNEL_MEMORY),
    Mutant("no shared area by /dev/zero", CONFINE, "devices = (_ZERO,) if given.unmapped else ()",
           "devices = (_ZERO,)", ORDINARY, KERNEL_MEMORY),
    Mutant("watchdog: shared areas", "isolation/tree_memory.py", "areas = kernel_memory.shared_mb(self._each(tree))",
           "areas = 0.0", ORDINARY, KERNEL_MEMORY),
    Mutant("watchdog: threads that follow each other", "isolation/tree_memory.py",
           " and threads == _threads(after.tree)", "", tests=("unit/isolation/test_tree_memory.py",)),
    Mutant("watchdog: sockets behind a thread that ended", "isolation/procfs.py",
           'f"{thread}/net/sockstat"', 'f"{one.pid}/net/sockstat"', tests=("unit/isolation/test_kernel_memory.py",),
           also=(Edit("isolation/kernel_memory.py", "(count for count in found if count is not None)",
                      "(count or 0 for count in found)"),)),
    Mutant("watchdog: memory of the kernel", "isolation/tree_memory.py",
           "kernel = kernel_memory.held_mb(tree, in_own_network=self._in_own_network)",
           "kernel = 0.0",
           ORDINARY, KERNEL_MEMORY),
    Mutant("watchdog: stopped for an exact look", "isolation/disk.py", "                pause.stop()\n", "",
           tests=("unit/isolation/test_disk.py",)),
    # ---- the channel
    Mutant("nothing begun while replies wait", "spawn/door.py", "if self._held or self._outbound.is_full:",
           "if self._held:", tests=(*UNREAD, "unit/spawn/test_door.py")),
    Mutant("nothing begun while a guest rests", "spawn/door.py",
           "if self._begins or not self._rested.is_set():", "if self._begins:", tests=("unit/spawn/test_door.py",)),
    Mutant("nothing made while a guest rests", "spawn/door.py", "        await self._rested.wait()\n", "",
           tests=("unit/spawn/test_door.py",)),
    Mutant("requests begin one at a time", "spawn/door.py", "            self._begins = True  #", "            #",
           tests=("unit/spawn/test_door.py",)),
    Mutant("parts of a value", "wire/reading.py", "        check_parts(body, json_size, what)\n", "        pass\n",
           tests=("unit/wire/test_values.py",)),
    Mutant("keys that collide", "wire/checks.py", "        return self._left >= 0\n", "        return True\n",
           tests=("unit/wire/test_values.py::test_keys_that_collide_are_counted_over_the_whole_value",)),
    Mutant("nothing sent while replies wait", "spawn/outbound.py",
           "    async def _write(self, data: bytes) -> None:\n        await self._has_room.wait()\n",
           "    async def _write(self, data: bytes) -> None:\n", tests=(*UNREAD, "unit/spawn/test_door.py")),
    Mutant("end of a guest that does not read", "spawn/outbound.py", "        while looks < _STEPS:\n",
           "        while True:\n", tests=UNREAD),
    Mutant("caps of a frame", "wire/frames.py", "    if not 1 <= control <= MAX_CONTROL:\n", "    if False:\n",
           tests=(*CHANNEL, "unit/wire/test_frames.py")),
    Mutant("cap of a body", "wire/frames.py", "    if body > MAX_BODY:\n", "    if False:\n",
           tests=(*CHANNEL, "unit/wire/test_frames.py")),
    Mutant("deadline of a frame", "spawn/door.py",
           'self._timers["frame"] = '
           "self._loop.call_at(self._partial_since + self._reader.allowance_s, self._end, late)",
           "_ = late", tests=CHANNEL),
    Mutant("token bucket", "spawn/door.py", "        if self._tokens < 1:\n", "        if False:\n", tests=CHANNEL),
    Mutant("rising numbers", "spawn/door.py", "            if said.id <= self._last_id:\n", "            if False:\n",
           tests=CHANNEL),
    Mutant("unknown fields refused", "wire/requests.py",
           'class Said(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field',
           'class Said(Struct, frozen=True, kw_only=True, forbid_unknown_fields=False, tag_field',
           tests=(*CHANNEL, "properties/test_requests.py", "unit/wire/test_hello.py")),
    Mutant("sizes of a value", "wire/reading.py", "    if not 0 < json_size <= len(body):\n", "    if False:\n",
           tests=_layer("test_a_value_that_announces_another_size_than_it_has_is_refused")),
    Mutant("a question shows the call of the model: arguments", "spawn/gates.py",
           'tool=tool, question=question, args=call["args"])', "tool=tool, question=question, args=request.args)",
           tests=QUESTIONS),
    Mutant("a question shows the call of the model: a hook's words", "spawn/gates.py",
           "        if question is None:", "        if True:", tests=QUESTIONS),
    # ---- repositories, settings and folders of strangers
    Mutant("git: sandbox", "isolation/git_sandbox/launcher.py", "        attempt(request)\n", "        pass\n",
           tests=REPOSITORY),
    Mutant("git: options", "isolation/git_sandbox/options.py", "    return [*found, *FIXED]\n", "    return []\n",
           tests=REPOSITORY),
    Mutant("git: commands in addresses", "isolation/git_sandbox/options.py",
           '    Setting("protocol.ext.allow", "never"),', "    ", tests=("unit/isolation/test_git_trust.py",)),
    Mutant("trust: blanks as git knows them", "tools/git_config.py", 'BLANKS = " \\t\\r"',
           'BLANKS = " \\t\\r\\x0b\\xa0"', tests=("unit/agent/files/test_git_configurations.py",)),
    Mutant("trust: words of commands", "agent/files/scripts.py", "            waiting += _words(text)\n", "",
           tests=("unit/agent/files/test_trust_commands.py",)),
    Mutant("git: files included under a condition", "isolation/git_sandbox/includes.py",
           "    if files:\n", "    if False:\n", tests=REPOSITORY),
    Mutant("git: files that values name", "tools/git_irregular.py",
           "            _check_path(checkout.top / path, MAX_FILE)\n", "            pass\n",
           tests=("unit/isolation/test_git_irregular.py",)),
    Mutant("git: attributes of a new worktree", "tools/git_irregular.py", "        if entry.key == _ATTRIBUTES and",
           "        if False and", tests=("unit/isolation/test_git_irregular.py",)),
    Mutant("git: embedded repositories", "tools/git_irregular.py",
           "                _check_embedded(Path(entry.path).parent, seen)\n", "                pass\n",
           tests=("unit/isolation/test_git_irregular.py",)),
    Mutant("git: folders that lead out of a repository", "tools/git_irregular.py",
           "                        if not may_lead_out():\n", "                        if False:\n", tests=IRREGULAR),
    Mutant("git: folders elsewhere in a trusted repository", "tools/git_irregular.py",
           "                    seen.add((real, _is_object(parts)))\n",
           "                    seen.add((real, _is_object(parts)))\n"
           "                    if not any(Path(real).is_relative_to(each) for each in tops):\n"
           "                        continue\n", tests=IRREGULAR),
    Mutant("git: references to other files", "tools/git_irregular.py",
           "                _check_reference(path)\n", "                pass\n", tests=IRREGULAR),
    Mutant("git: size of branches that are called as an index", "tools/git_irregular.py",
           " and not set(_REFERENCES).intersection(parts)\n", "\n", tests=IRREGULAR),
    Mutant("git: folders of kernels", "isolation/git_sandbox/private_root.py", "            _cover(step)\n",
           "            pass\n", tests=("unit/isolation/test_git_trust.py",)),
    Mutant("git: trust", "isolation/git.py", "        if self._is_trusted(where):\n", "        if True:\n",
           tests=REPOSITORY),
    Mutant("permissions: deny", "tools/permitting.py", '    if ruling.verdict == "deny":\n', "    if False:\n",
           tests=("trips/test_permissions.py",)),
    Mutant("permissions: copies of files", "tools/permissions/path_rules.py",
           "for original in originals(name))", "for original in (name,))",
           tests=("unit/tools/test_permission_paths.py",)),
    Mutant("permissions: rules seen from copies", "tools/permissions/path_rules.py",
           "for other in originals(each)", "for other in (each,)", tests=("unit/tools/test_permission_paths.py",)),
    Mutant("permissions: words that expand to options", "tools/permissions/expansions.py",
           "    return word.expanded and not (is_pattern(word)", "    return False and not (is_pattern(word)",
           tests=("unit/tools/test_permission_starters.py",)),
    Mutant("permissions: variables in arithmetic", "tools/permissions/expansions.py",
           " or self._evaluated & self.others\n", "\n", tests=("unit/tools/test_permission_starters.py",)),
    Mutant("permissions: names behind an option's letters", "tools/permissions/command_rules.py",
           "range(min(len(word), MAX_GLUED + 1))", "range(1)", tests=("unit/tools/test_permission_starters.py",)),
    Mutant("permissions: folders that a command names", "tools/permissions/judging.py",
           "_TouchedFile((*names, *below),", "_TouchedFile((*names,),",
           tests=("unit/tools/test_permission_starters.py",)),
    Mutant("permissions: other working folders", "tools/permissions/judging.py",
           "                        found.append(folder)\n", "                        pass\n",
           tests=("unit/tools/test_permission_starters.py",)),
    Mutant("permissions: spellings of hosts", "tools/permissions/judging.py",
           ' or not _HOST.match(host) or "@" in', ' or "@" in', tests=("unit/tools/test_permission_judging.py",)),
    Mutant("links in the state folder", "disk/state_folder.py", "    if not stat.S_ISDIR(found.st_mode):\n",
           "    if False:\n", tests=STATE),
    Mutant("journals that others can read", "disk/state_folder.py",
           "        if is_private and not suffix and found.st_mode & 0o077:\n", "        if False:\n", tests=STATE),
    Mutant("rollback journals that name a file", "disk/rollback_journal.py",
           " and not content.endswith(_MAGIC)\n", "\n", tests=COMMANDS),
    Mutant("rollback journals of a stranger", "disk/state_folder.py",
           '        if suffix == "-journal" and not _is_own_rollback(file, name, field, database_size):\n',
           "        if False:\n", tests=COMMANDS),
    # ---- the work of checks
    Mutant("steps of a check", "agent/steps.py", "        if self.left < 0:\n", "        if False:\n",
           tests=(f"{STEPS[0]}::test_an_agent_file_with_such_a_schema_is_refused",)),
    Mutant("classes read once", "agent/typed/reading.py", "        read = self._classes.get(name)\n",
           "        read = None\n", tests=STEPS),
    Mutant("parts of types", "agent/typed/reading.py", "        if self._left < 0:\n", "        if False:\n",
           tests=STEPS),
    Mutant("parts of one class", "agent/typed/reading.py", "        if self._own[owner] > MAX_CLASS_PARTS:\n",
           "        if False:\n", tests=_types("a_class_of_too_many_parts_is_refused")),
    Mutant("parts of checks of defaults", "agent/typed/reading.py", '        if "default" in schema:\n',
           "        if False:\n", tests=_types("defaults_of_large_classes_count_as_much_as_the_classes")),
    Mutant("size of a default", "agent/typed/values.py", "        take(self._steps)\n", "        take(1)\n",
           tests=_types("defaults_are_counted_by_their_size_for_each_object")),
    Mutant("defaults that are shared", "agent/typed/values.py", "            take(1)  #", "            #",
           tests=_types("defaults_that_are_shared_are_counted_for_each_object")),
    Mutant("defaults of one recipe together", "agent/rebuilding.py", "    with counted(len(recipe.canonical())):",
           "    if True:", tests=_types("the_defaults_of_one_recipe_share_their_steps")),
    Mutant("numbers of one hash in types", "agent/typed/tries.py",
           "        if self._needs_hashes and not can_be_hashed(data):\n", "        if False:\n",
           tests=_types("numbers_of_one_hash_are_refused_in_sets_and_as_keys")),
    Mutant("numbers of one hash in enums", "agent/typed/reading.py",
           "        if not hashes.can_be_hashed(values):\n", "        if False:\n",
           tests=_types("enums_and_literals_of_numbers_of_one_hash_are_refused")),
    Mutant("numbers of one hash in models", "wire/fitting.py",
           "            if lenient and _needs_hashes(cls)", "            if False and _needs_hashes(cls)",
           tests=("unit/wire/test_values.py::test_keys_that_a_model_would_make_are_counted",)),
    Mutant("classes that nobody uses", "agent/typed/cache.py", "            while self._left < 0 and",
           "            while False and", tests=_types("classes_are_not_kept_for_the_life_of_the_process")),
    Mutant("dialects below the root", "agent/schema.py",
           '                if subschema is not schema and isinstance(subschema.get("$schema"), str):\n',
           "                if False:\n", tests=STEPS),
    # ---- secrets
    Mutant("secrets masked in errors", "spawn/private.py",
           "    return replace(error, type=masked(error.type, forms), message=masked(error.message, forms))\n",
           "    return error\n", tests=AT_REST),
    Mutant("values of variables left out of the record", "spawn/births.py",
           '    data["secrets"], data["env_vars"] = sorted(grant.secrets), sorted(grant.env_vars)\n',
           '    data["secrets"] = sorted(grant.secrets)\n', tests=AT_REST),
    # ---- keys
    Mutant("sandbox of a team's agent", "services/rules.py",
           "return Policy() if needs_sandbox or self.sandboxed else None",
           "return None", tests=TEAM),
    Mutant("private addresses by a rule only", "services/rules.py",
           "        self._check_endpoints(grant.allowed_endpoints)\n", "", tests=("security/test_team_endpoints.py",)),
    Mutant("no private address below every public one", "core/rights.py",
           'if _is_private(each)] if "*" in granted else lacking', 'if False] if "*" in granted else lacking',
           tests=("security/test_attacks_spawning.py",)),
    Mutant("bundles of the operator only", "services/app/images.py", '    if call.parts.rules.bundles == "teams":\n',
           "    if True:\n", tests=TEAM),
    Mutant("bundles of a team for that team only", "services/packaging/contract.py",
           "        return asker == OPERATOR or asker in self.owners or OPERATOR in self.owners\n",
           "        return True\n", tests=("security/test_team_bundles.py",)),
    Mutant("images of a team for that team only", "services/packaging/service.py",
           "        if found.owner != OPERATOR:\n            return None\n", "",
           tests=("security/test_team_bundles.py",)),
    Mutant("an image for each owner", "services/packaging/images.py",
           '("ramet image 1", owner, *bundles)', '("ramet image 1", "", *bundles)',
           tests=("security/test_team_bundles.py",)),
    Mutant("bundles: parts of keys in a manifest", "services/packaging/manifest.py",
           "    if (marks := marks_of(", "    if False and (marks := marks_of(", tests=BUNDLES),
    Mutant("bundles: texts of a manifest", "services/packaging/manifest.py", '(?: "{3,5} |', '(?: "{3} |',
           tests=BUNDLES),
    Mutant("bundles: bytes of a manifest", "services/packaging/folders.py", "content.read(limit + 1)", "content.read()",
           tests=BUNDLES),
    Mutant("401 for a key that opens nothing", "services/app/application.py",
           "                await call.check_key()\n",
           "                pass\n", tests=("trips/test_unknown_keys.py",)),
    Mutant("streams end with the right of their key", "services/talking/turns.py",
           "                        self._check_right(grant)\n", "                        pass\n", tests=LOST_KEYS),
    Mutant("right of a reader looked at again", "services/talking/grants.py",
           "        if not self._living.holds(self._by, self._right):\n            raise",
           "        if False:\n            raise", tests=LOST_KEYS),
    Mutant("readers woken when keys change", "services/spawning/roster.py",
           "tuple(self.watchers) if has_new_keys else ()", "()", tests=LOST_KEYS),
    Mutant("turns of a key without rights withdrawn", "services/talking/conversation.py",
           "turn.before is not None or self._holds(turn.by)", "True", tests=LOST_KEYS),
    Mutant("constant time: keys of services", "services/spawning/keys.py",
           "hmac.compare_digest(hash_of(key), hash)", "hash_of(key) == hash", tests=KEYS),
    Mutant("constant time: keys of an agent", "services/spawning/keys.py",
           "hmac.compare_digest(hash, each.hash)", "hash == each.hash", tests=KEYS),
    Mutant("constant time: keys of teams", "services/spawning/spawner.py",
           "hmac.compare_digest(hash, each.key)", "hash == each.key", tests=KEYS),
    Mutant("constant time: keys of teams, between kernels", "services/kernels/directory.py",
           "hmac.compare_digest(each.key, hash)", "each.key == hash", tests=KEYS),
    Mutant("constant time: passes of kernels", "services/kernels/passes.py",
           "not hmac.compare_digest(shown.encode(), self._pass(name, self.me).encode())",
           "shown != self._pass(name, self.me)", tests=KEYS),
    Mutant("constant time: keys of pods", "isolation/lines/keys.py",
           "any(hmac.compare_digest(each, arrived) for each in known.hashes)", "arrived in known.hashes", tests=KEYS),
    # ---- rights and limits of children
    Mutant("rights refused", "core/policy.py", "    if lacking:\n", "    if False:\n", tests=SPAWNING),
    Mutant("limits clamped", "core/policy.py", "else min(wanted[name], most[name]) for name",
           "else wanted[name] for name",
           tests=SPAWNING),
    Mutant("sub-agents by leave only", "spawn/granting.py", "    if not grant.allow_sub_agents:\n", "    if False:\n",
           tests=("spawning", "channel")),
    Mutant("depth", "spawn/granting.py", "    if grant.max_sub_agent_depth < 1:\n", "    if False:\n",
           also=(Edit("core/policy.py", '    if most["max_sub_agent_depth"] < 0:\n', "    if False:\n"),),
           tests=(*SPAWNING, "unit/core/test_policy.py")),
    Mutant("number of children", "spawn/granting.py", "    if asked >= grant.max_sub_agents:\n", "    if False:\n",
           tests=SPAWNING),
    Mutant("living children of a conversation", "spawn/granting.py",
           "if parent.persistent and grant is not None and", "if False and",
           tests=("trips/test_births_of_conversations.py",)),
    Mutant("loaders' variables", "core/rights.py", "    if _LOADERS.fullmatch(name):\n", "    if False:\n",
           tests=SPAWNING),
    Mutant("paths of mounts", "core/rights.py", "        not text.startswith(\"/\")\n        or",
           "        False and", tests=FILES),
    # ---- what comes back
    Mutant("links not collected", "isolation/artifacts.py", "    if kind != stat.S_IFREG:\n", "    if False:\n",
           tests=(*FILES, "security/test_artifacts.py", "unit/isolation/test_artifacts.py")),
    Mutant("hard links not collected", "isolation/artifacts.py", "    if entry.stat.st_nlink != 1:\n",
           "    if False:\n",
           tests=(*FILES, "security/test_artifacts.py", "unit/isolation/test_artifacts.py")),
    Mutant("links on the way to an artifact", "isolation/artifacts.py",
           "_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW", "_FOLDER = os.O_RDONLY | os.O_DIRECTORY",
           tests=("security/test_artifacts.py",)),
    Mutant("links in a folder that is walked", "isolation/trees.py",
           "_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW", "_FOLDER = os.O_RDONLY | os.O_DIRECTORY",
           tests=("security/test_artifacts.py", "unit/isolation/test_trees.py")),
    Mutant("size of artifacts", "isolation/artifacts.py", "    if total > max_bytes:\n", "    if False:\n",
           tests=("answers",)),
    Mutant("size of a result", "guest/__main__.py", ", max_bytes=start.max_result_bytes", "",
           tests=("answers", "channel", "trips/test_isolated_limits.py", "unit/guest/")),
)  # fmt: skip
