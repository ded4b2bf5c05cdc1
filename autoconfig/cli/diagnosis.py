"""`diagnose`: why is my run slower than it should be?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoconfig.cli.main import console, print_json
from autoconfig.cli.options import ManyOptions, json_option, options, verbose_option
from autoconfig.planning import request_fields as fields

EXIT_SLOW, EXIT_NOT_SAID = 3, 4
"""Slow with a cause that is named; slow without one, nothing may be promised of its class, or the run may not calibrate."""


@click.command("diagnose", cls=ManyOptions)
@click.argument("evidence", nargs=-1, metavar="[FILE|PLAN]...")
@options(fields.DIAGNOSE, fields.QUESTION)
@json_option
@verbose_option
@click.pass_context
def diagnose_command(ctx: click.Context, /, evidence: tuple[str, ...], as_json: bool, verbose: bool, **given: Any) -> None:
    """Why a run is slower than it should be: what it left behind beside the price of its plan, and the cause by name.

    FILEs in any order, recognised by content: launch file, logs of training and RL frameworks, traces (Kineto, Nsight's
    sqlite), NCCL and nvidia-smi logs. The plan comes from the launch file, from the arguments that a log of Megatron-LM prints,
    or from the options and a PLAN as `explain` takes them. Of two logs the first is the good one.

    Exit code 0: healthy, or nothing to say; 2: unreadable; 3: slow, with a cause; 4: slow without one, no promise, or not fit
    to calibrate.

    autoconfig diagnose pretrain.sh run.log nccl.log

    autoconfig diagnose --model llama3-70b --gpus 64 tp=4,pp=4,mbs=1,sp=1 --step 8.1s
    """
    from autoconfig.diagnosis.answer import NO_PROMISE, SLOW
    from autoconfig.diagnosis.files import diagnose_files
    from autoconfig.render.diagnosis.record import diagnosis_json
    from autoconfig.render.diagnosis.screen import show_diagnosis

    calibrate = given["calibrate"]
    found = diagnose_files(evidence, given)
    if as_json:
        print_json(diagnosis_json(found))
    else:
        show_diagnosis(console(), found)
    if calibrate is not None:
        if found.why_not_calibrate:
            click.echo(f"this run calibrates nothing: {found.why_not_calibrate}", err=True)
            ctx.exit(EXIT_NOT_SAID)
        _calibrate(found, Path(calibrate), given["calibration"], err=as_json)
    if found.verdict == NO_PROMISE or (found.verdict == SLOW and not found.causes):
        ctx.exit(EXIT_NOT_SAID)
    if found.verdict == SLOW:
        ctx.exit(EXIT_SLOW)


def _calibrate(found: Any, output: Path, base: str | None, *, err: bool) -> None:
    """Write the calibration of a healthy run. Raises InputError for a file that cannot be written."""
    from autoconfig.diagnosis.calibration import calibration_of
    from autoconfig.planning.calibration_file import named_calibration, write_calibration
    from autoconfig.specs.files import check_output_path

    check_output_path(output, (".json",))
    made = calibration_of(found, named_calibration(base))
    write_calibration(made, output)
    click.echo(f"calibration {made.version} from this run, written to {output}", err=err)
