"""One scaler at work: it asks the dispatcher what is wanted, looks what runs, and does what lies between."""

import asyncio
import secrets
import ssl
from time import monotonic

import aiohttp

from schedulers.errors import InputError
from services.dispatcher.logs import log
from services.scaler.config import ScalerConfig
from services.scaler.driver import Driver, DriverError, Unit
from services.scaler.keeper import Bounds, Keeper, Steps
from services.scaler.metrics import Metrics
from services.wanted import ANSWER, ASK, NONCE, SIGNATURE, Told, Wanted, packed, signature, signed, wanted_in

ANSWER_MAX = 4 << 20
PATIENCE_S = 5.0
"""How long an answer of the dispatcher may take."""

MISSED = 3
"""Turns in a row without the dispatcher or the driver after which it is not ready."""


class UnheardError(Exception):
    """The dispatcher did not answer, or somebody else did."""


class Scaler:
    """Nothing that it needs outlives a turn but what the driver shows: it may be killed at any moment."""

    def __init__(self, config: ScalerConfig, driver: Driver) -> None:
        self.config, self.driver, self.metrics = config, driver, Metrics(config.most)
        self.keeper = Keeper(Bounds(config.most, config.orphan_s))
        self.ending: dict[str, asyncio.Task[None]] = {}
        self.metrics_at = ""
        self.missed = MISSED
        self.wanted = Wanted()

    @property
    def ready(self) -> bool:
        """True while dispatcher and driver answer."""
        return self.missed < MISSED

    async def run(self, session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        """Turn until told to stop; a turn that has begun is brought to its end. Workers go on."""
        while not stop.is_set():
            began_s = monotonic()
            await self.turn(session)
            self.metrics.turn.observe(monotonic() - began_s)
            left_s = began_s + self.config.period_s - monotonic()
            try:
                await asyncio.wait_for(stop.wait(), max(0.0, left_s))
            except TimeoutError:
                continue
        for task in self.ending.values():  # they were asked to end, and do so without us
            task.cancel()

    async def turn(self, session: aiohttp.ClientSession) -> None:
        """Look once, and act. Without the dispatcher's word nothing is done."""
        try:
            units = await asyncio.to_thread(self.driver.units)
            self.wanted = await self.ask(session, units)
            self._heard()
        except DriverError as error:
            self._unheard("driver", error)
            return
        except (UnheardError, aiohttp.ClientError, TimeoutError) as error:
            self._unheard("dispatcher", error)
            return
        self.metrics.sized(self.state_of(unit) for unit in units)
        await self.act(self.keeper.steps(self.wanted, units, monotonic()))

    def _heard(self) -> None:
        if not self.ready:
            log.info("dispatcher heard", dispatcher=self.config.dispatcher)
        self.missed = 0
        self.metrics.heard.set(1)

    def _unheard(self, side: str, error: Exception) -> None:
        self.metrics.errors.labels(side).inc()
        self.missed += 1
        if self.missed == MISSED:
            log.warning("nothing can be done", side=side, error=type(error).__name__, what=str(error)[:300])
        if not self.ready:
            self.metrics.heard.set(0)

    async def ask(self, session: aiohttp.ClientSession, units: list[Unit]) -> Wanted:
        """Tell the dispatcher what runs and hear what it wants; raises UnheardError for anybody else's answer."""
        rows = tuple((unit.worker, unit.order, self.state_of(unit)) for unit in units)
        body, nonce = packed(Told(self.metrics_at, self.config.most, rows)), secrets.token_hex(16)
        headers = {NONCE: nonce, SIGNATURE: signature(self.config.key, ASK, nonce, body)}
        url = f"{self.config.dispatcher.rstrip('/')}/scaling"
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            answer = await response.content.read(ANSWER_MAX)
            if response.status != 200:
                raise UnheardError(
                    f"{url} answered {response.status}: {answer[:200].decode(errors='replace')}"
                )
            shown = response.headers.get(SIGNATURE, "")
        if not shown.isascii() or not signed(self.config.key, ANSWER, nonce, answer, shown):
            raise UnheardError(f"{url} answered without the shared key: not obeyed")
        try:
            return wanted_in(answer)
        except InputError as error:
            raise UnheardError(f"{url}: {error}") from None

    def state_of(self, unit: Unit) -> str:
        """Which of ``metrics.STATES`` a worker is in."""
        if not unit.alive:
            return "dead"
        if unit.handle in self.ending:
            return "ending"
        if unit.worker in self.wanted.draining or unit.worker in self.wanted.stop:
            return "draining"
        return "serving" if unit.worker in self.wanted.here else "booting"

    async def act(self, steps: Steps) -> None:
        """Do it. Starts are waited for, so that the next look sees them; ends take their time."""
        for unit in steps.booted:
            self.metrics.boot.observe(unit.age_s)
            log.info("worker joined", worker=unit.worker, order=unit.order, boot_s=round(unit.age_s, 3))
        for unit in steps.crashed:
            self.metrics.crashes.inc()
            log.warning("worker died before it joined", worker=unit.worker, order=unit.order)
        self.metrics.orders.labels("refused").inc(steps.refused)
        for unit, why in steps.stop:
            if unit.handle not in self.ending:
                self.ending[unit.handle] = asyncio.create_task(self._end(unit, why))
        for unit in steps.clear:
            await self._clear(unit)
        for order in steps.start:
            await self._start(order)

    async def _start(self, order: str) -> None:
        try:
            unit = await asyncio.to_thread(self.driver.start, order)
        except DriverError as error:
            self.keeper.failed(order, monotonic())
            self.metrics.orders.labels("failed").inc()
            self.metrics.errors.labels("driver").inc()
            log.warning("a worker could not be started", order=order, what=str(error)[:300])
            return
        self.metrics.orders.labels("started").inc()
        log.info("worker started", worker=unit.worker, order=order)

    async def _end(self, unit: Unit, why: str) -> None:
        began_s = monotonic()
        self.metrics.stops.labels(why).inc()
        log.info("worker ends", worker=unit.worker, reason=why)
        try:
            killed = await asyncio.to_thread(self.driver.stop, unit, self.config.grace_s)
            self.metrics.kills.inc(int(killed))
            self.metrics.stop.observe(monotonic() - began_s)
            log.info(
                "worker ended", worker=unit.worker, killed=killed, took_s=round(monotonic() - began_s, 3)
            )
        except DriverError as error:
            self.metrics.errors.labels("driver").inc()
            log.warning("a worker could not be ended", worker=unit.worker, what=str(error)[:300])
        finally:
            self.ending.pop(unit.handle, None)

    async def _clear(self, unit: Unit) -> None:
        try:
            if await asyncio.to_thread(self.driver.clear, unit):
                self.metrics.cleared.inc()
                log.info("remains removed", worker=unit.worker)
        except DriverError as error:
            self.metrics.errors.labels("driver").inc()
            log.warning("remains could not be removed", worker=unit.worker, what=str(error)[:300])


def session_of(config: ScalerConfig) -> aiohttp.ClientSession:
    """A session that trusts the dispatcher's certificate and shows our own; raises InputError."""
    secure: ssl.SSLContext | bool = True
    if config.dispatcher.startswith("https:"):
        try:
            secure = ssl.create_default_context(cafile=config.ca or None)
            if config.tls_cert:
                secure.load_cert_chain(config.tls_cert, config.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"can't read the certificates: {error}", where="ca, tls_cert, tls_key") from None
    connector = aiohttp.TCPConnector(ssl=secure)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=PATIENCE_S))
