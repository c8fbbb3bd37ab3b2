"""After a restart: what the journal says is open is taken over, first with the workers that still have it."""

from typing import TYPE_CHECKING

from services.dispatcher.answer import Answer
from services.dispatcher.intake import prompt_tokens
from services.dispatcher.logs import log
from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.store.records import Recovered, Saved

if TYPE_CHECKING:
    from services.dispatcher.core import Dispatcher
    from services.dispatcher.links import Links


def take_over(heart: "Dispatcher", links: "Links", recovered: Recovered) -> int:
    """Make answers of what the journal holds; returns how many are open. Their workers have a grace to come."""
    heart.next_number = max(heart.next_number, recovered.next_number)
    for saved in recovered.requests.values():
        answer = restored(heart, saved)
        heart.answers[answer.number] = heart.by_id[answer.owner, answer.request_id] = answer
        if answer.ending is not None:
            heart.ended[answer.number] = answer
        else:
            links.orphans[answer.number] = answer
    heart.recovering = bool(links.orphans)
    log.info("journal read", open=len(links.orphans), ended=len(heart.ended))
    return len(links.orphans)


def restored(heart: "Dispatcher", saved: Saved) -> Answer:
    """One answer as the journal has it, on this process's clock."""
    accepted = saved.accepted
    asked = door.SubmitRequest.FromString(accepted.submission)
    arrived_s = heart.clock() - max(0.0, heart.wall() - accepted.wall_s)
    answer = Answer(accepted.number, asked, accepted.owner, arrived_s)
    answer.digest, answer.journalled = accepted.digest, True
    answer.resumable = True
    answer.tokens.extend(saved.tokens)
    answer.pieces.extend(saved.pieces)
    answer.noted = answer.kept = answer.taken = len(saved.tokens)
    answer.migrations = saved.migrations
    answer.attempt = saved.sent.attempt if saved.sent else 0
    answer.prompt_tokens = prompt_tokens(asked)
    answer.tenant = heart.doorkeeper.row_of(asked.tenant)
    if saved.ended is not None:
        answer.ending = wire.Ending.FromString(saved.ended.ending)
        answer.ended_s = heart.clock()
    return answer


def send_anew(heart: "Dispatcher", links: "Links") -> None:
    """The grace is over: what no worker came back with is given to an engine again, from the token that is kept.

    Tokens after that one may have reached a client. An engine that is not deterministic may draw others: who
    asks for the rest is told so (``Dispatcher.listen``).
    """
    orphans, links.orphans = list(links.orphans.values()), {}
    heart.recovering = False
    sure = all(worker.deterministic for worker in links.workers.values())
    for answer in orphans:
        if answer.ending is not None:
            continue
        if not sure:
            answer.unsure_from = len(answer.tokens)
        answer.attempt = max(1, answer.attempt)  # it was admitted before: only its engine is chosen again
        heart.act(heart.desk.arrive(heart.arrival_of(answer), heart.clock()))
    if orphans:
        log.info("sent anew after the restart", requests=len(orphans))
