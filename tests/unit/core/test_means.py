import math

import numpy as np
import pytest

from evenmesh_core.errors import InvalidInput
from evenmesh_core.means import defined_mean


def test_undefined_values_are_counted_and_left_out():
    assert defined_mean([1.0, np.nan, 2.0, 6.0]) == ((1 + 2 + 6) / 3, 3, 1)


def test_nothing_defined_has_no_mean():
    mean = defined_mean([np.nan, np.nan])
    assert math.isnan(mean.mean)
    assert (mean.defined, mean.undefined) == (0, 2)


@pytest.mark.parametrize("values", [[], [np.inf], [[1.0]], ["x"]])
def test_bad_values_are_refused(values):
    with pytest.raises(InvalidInput, match="values"):
        defined_mean(values)
