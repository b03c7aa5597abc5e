"""A decoded pprof as columns: numpy arrays over the wire bytes, ids resolved to row numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
Unsigned = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

NONE = -1  # no such row: a location without mapping, a line without function


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Everything that a pprof says. `x_offset` columns have one element more than rows.

    Strings are spans of `raw`; string indexes are checked, so that string_start[i] is always valid.
    """

    raw: bytes
    string_start: Int
    string_length: Int

    sample_type: Int  # string index per value column
    sample_unit: Int
    value: Int  # shape (samples, value columns)
    sample_location_offset: Int
    sample_location: Int  # row of a location; leaf first, as on the wire
    sample_label_offset: Int
    label_key: Int  # string index
    label_str: Int  # string index; 0 when the label is a number
    label_num: Int
    label_num_unit: Int  # string index

    location_address: Unsigned
    location_mapping: Int  # row of a mapping, or NONE
    location_is_folded: Flags
    line_offset: (
        Int  # lines of a location; the last line is the caller into which the others were inlined
    )
    line_function: Int  # row of a function, or NONE
    line_number: Int
    line_column: Int

    function_name: Int  # string indexes
    function_system_name: Int
    function_file: Int
    function_start_line: Int

    mapping_start: Unsigned
    mapping_limit: Unsigned
    mapping_offset: Unsigned
    mapping_file: Int  # string index
    mapping_build_id: Int  # string index
    mapping_flags: (
        Int  # bits: 1 has_functions, 2 has_filenames, 4 has_line_numbers, 8 has_inline_frames
    )

    comment: Int  # string indexes
    default_sample_type: int  # string index
    drop_frames: int  # string index
    keep_frames: int  # string index
    doc_url: int  # string index
    period_type: int  # string index
    period_unit: int  # string index
    period: int
    time_ns: int
    duration_ns: int

    def text(self, index: int) -> str:
        """One string; who filled the tables saw that it is UTF-8."""
        start = int(self.string_start[index])
        return self.raw[start : start + int(self.string_length[index])].decode()

    @property
    def samples(self) -> int:
        return int(self.value.shape[0])
