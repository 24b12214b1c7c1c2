"""Turning the simulator on and off."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import io
import multiprocessing.spawn
import runpy
import sys
import threading
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from kvlint.autoload import npu_present
from kvlint.contract import catalogue
from kvlint.sim import device, modules, npu_api, stubs
from kvlint.sim.errors import SimulationError
from kvlint.sim.inert import InertFinder
from kvlint.sim.operators import Definitions
from kvlint.sim.patches import Patches

Route = Literal["auto", "catalogue", "wheel"]


class _State:
    """What the process has."""

    active: Simulation | None = None
    #: ``with simulate()`` blocks that are open, in any thread; the last one to end turns the simulator off.
    users = 0
    #: Held while the simulator is turned on or off.
    lock = threading.RLock()
    #: Route, release and operators. These stay after the simulation: programs keep references to them.
    definitions: tuple[str, str | None, Definitions] | None = None


class Simulation:
    """A running simulation."""

    def __init__(self, route: Literal["catalogue", "wheel"], release: str) -> None:
        self.route, self.release = route, release
        self.devices = device.Devices()
        self.torch_npu: Any = None
        #: Python files that add kernels; processes that this one starts run them as well.
        self.kernel_files: list[str] = []
        self._patches = Patches()
        #: The redirection of the thread that called :func:`install`; ``simulate`` has one per block.
        self.mode: device.Redirect | None = None
        self._finder: InertFinder | None = None

    @property
    def calls(self) -> dict[str, int]:
        """Operator -> how often its kernel ran in this process."""
        return _State.definitions[2].calls() if _State.definitions is not None else {}

    def start(self) -> None:
        try:
            self.torch_npu = self._wheel() if self.route == "wheel" else self._catalogue()
            device.install(self._patches, self.devices)
            self._carry_on_in_children()
        except BaseException:
            self._restore()
            raise

    def stop(self) -> None:
        if self.mode is not None:
            self.mode.__exit__(None, None, None)
            self.mode = None
        self._restore()

    def transfer_cuda(self) -> None:
        """``cuda`` means the NPU from now on."""
        if not self.devices.cuda:
            device.transfer_cuda(self._patches, self.devices)

    def _restore(self) -> None:
        if self._finder is not None:
            sys.meta_path.remove(self._finder)
            self._finder.forget()
            self._finder = None
        self._patches.undo()

    def _carry_on_in_children(self) -> None:
        """Processes that multiprocessing starts afresh simulate too; forks do so by themselves."""
        prepare = multiprocessing.spawn.get_preparation_data

        def prepared(name: str) -> dict[str, Any]:
            return {"kvlint": _Child(self), **prepare(name)}

        self._patches.set(multiprocessing.spawn, "get_preparation_data", prepared)

    def _find_inert(self, packages: tuple[str, ...]) -> None:
        self._finder = InertFinder(packages, modules.furnish)
        sys.meta_path.insert(0, self._finder)

    def _catalogue(self) -> ModuleType:
        definitions = _define("catalogue", self.release)
        definitions.define_all(self.release)
        definitions.define_own()
        definitions.register_all()
        rename_privateuse1_backend("npu")
        self._find_inert(modules.INERT)
        module = modules.TorchNpu(self.release)
        for name in modules.atb_names(self.release):
            setattr(module.atb, name, getattr(torch.ops.atb, name))
        for name, part in (("torch_npu", module), ("torch_npu.npu", module.npu),
                           ("torch_npu.atb", module.atb),
                           ("torch.npu", module.npu)):  # fmt: skip
            self._patches.module(name, part)
        self._patches.set(torch, "npu", module.npu)
        return module

    def _wheel(self) -> Any:
        module = load_wheel()
        definitions = _define("wheel", self.release)
        definitions.define_atb(self.release)
        definitions.define_own()
        definitions.register_all()
        self._find_inert(modules.INERT_BESIDE_WHEEL)
        self._patches.set(module, "profiler", importlib.import_module("torch_npu.profiler"))
        for name, value in npu_api.names().items():
            self._patches.set(module.npu, name, value)
        for name in modules.atb_names(self.release):
            packet = getattr(torch.ops.atb, name)
            self._patches.set(module.atb, name, packet)
            self._patches.set(module, name, packet)
        return module


class _Child:
    """Starts the simulation in the process that unpickles it, before the program's main module is there."""

    def __init__(self, parent: Simulation) -> None:
        self._parent = parent

    def __reduce__(self) -> Any:
        parent = self._parent
        return _start_child, (parent.route, parent.release, list(parent.kernel_files))


def _start_child(route: Route, release: str, kernel_files: list[str]) -> None:
    if _State.active is not None:
        return
    # The parent knows the release that the wheel was resolved to.
    simulation = install(route, release=release if route == "catalogue" else None, force=True)
    simulation.kernel_files += kernel_files
    for file in kernel_files:
        runpy.run_path(file)


def load_wheel() -> Any:
    """The real torch_npu, beside stand-ins for the CANN libraries."""
    if "torch_npu" in sys.modules:
        return sys.modules["torch_npu"]
    stubs.preload()
    hook = sys.excepthook
    # It also prints that ASCEND_HOME_PATH is not set, which is the point here.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            module = importlib.import_module("torch_npu")
        except Exception as error:
            raise SimulationError(
                f"the installed torch_npu does not load beside stand-in libraries ({error}); "
                "use route 'catalogue' instead"
            ) from error
        finally:
            # torch_npu prints an error code of its own under every traceback.
            sys.excepthook = hook
    return module


def _define(route: str, release: str | None) -> Definitions:
    if _State.definitions is not None and _State.definitions[:2] != (route, release):
        _State.definitions[2].close()
        _State.definitions = None
    if _State.definitions is None:
        _State.definitions = (route, release, Definitions())
    return _State.definitions[2]


def wheel_installed() -> bool:
    """A torch_npu wheel is on the path; nothing is imported."""
    return any(
        importlib.machinery.PathFinder.find_spec("torch_npu", [entry or "."]) is not None
        for entry in sys.path
    )


def active() -> Simulation | None:
    """The running simulation."""
    return _State.active


def install(route: Route = "auto", *, release: str | None = None, force: bool = False) -> Simulation:
    """Turns the simulator on for the rest of the process, or until :func:`uninstall`.

    ``route``: ``"wheel"`` uses the installed torch_npu, ``"catalogue"`` operators that kvlint defines for
    ``release`` (the newest by default), ``"auto"`` the wheel where there is one. ``force`` is needed on a
    machine with an NPU. Must run before the program imports torch_npu or asks for a device.
    """
    with _State.lock:
        simulation = _start(route, release, force)
        simulation.mode = device.Redirect(simulation.devices)
        simulation.mode.__enter__()
        return simulation


def _start(route: Route, release: str | None, force: bool) -> Simulation:
    """All but the redirection, which is a thread's own."""
    if _State.active is not None:
        raise SimulationError("the simulator is on already")
    if npu_present() and not force:
        raise SimulationError("this machine has an NPU; ask for the simulator explicitly (force=True, --sim)")
    if route not in ("auto", "catalogue", "wheel"):
        raise SimulationError(f"no route {route!r}; routes: auto, catalogue, wheel")
    chosen: Literal["catalogue", "wheel"]
    chosen = ("wheel" if wheel_installed() else "catalogue") if route == "auto" else route
    if chosen == "wheel" and not wheel_installed():
        raise SimulationError("route wheel: torch_npu is not installed")
    loaded = sys.modules.get("torch_npu")
    if chosen == "catalogue" and loaded is not None and not isinstance(loaded, modules.TorchNpu):
        raise SimulationError("route catalogue: the real torch_npu is imported already")
    simulation = Simulation(chosen, _release(chosen, release))
    simulation.start()
    _State.active = simulation
    return simulation


def _release(route: str, release: str | None) -> str:
    if route == "wheel":
        import importlib.metadata

        installed = importlib.metadata.version("torch_npu")
        if release is not None and catalogue.resolve_release(release) != installed.partition("+")[0]:
            raise SimulationError(f"route wheel: torch_npu {installed} is installed, not {release}")
        try:
            return catalogue.resolve_release(f"=={installed}")
        except ValueError:
            return catalogue.releases()[-1]
    try:
        return catalogue.releases()[-1] if release is None else catalogue.resolve_release(release)
    except ValueError as error:
        raise SimulationError(str(error)) from error


def uninstall() -> None:
    """Turns the simulator off."""
    with _State.lock:
        if _State.active is not None:
            simulation, _State.active = _State.active, None
            simulation.stop()


@contextlib.contextmanager
def simulate(
    route: Route = "auto", *, release: str | None = None, force: bool = False
) -> Iterator[Simulation]:
    """``with simulate():`` NPU code runs on the CPU. Inside another simulation, that one goes on.

    So it does for blocks of several threads at once: they share the first one's simulation, whatever they ask
    for, and it ends with the last of them.
    """
    with _State.lock:
        shared = _State.active is not None and _State.users == 0  # it is install's, and ends with uninstall
        simulation = _State.active or _start(route, release, force)
        _State.users += not shared
    try:
        with device.Redirect(simulation.devices):
            yield simulation
    finally:
        with _State.lock:
            _State.users -= not shared
            if not shared and _State.users == 0 and _State.active is simulation:
                uninstall()


def kernel_added(full: str) -> None:
    """A program registered a kernel while the simulator is on."""
    if _State.active is None or _State.definitions is None:
        return
    _State.definitions[2].define_own()
    _State.definitions[2].register(full)


def transfer_cuda() -> None:
    """See :meth:`Simulation.transfer_cuda`."""
    if _State.active is not None:
        _State.active.transfer_cuda()
