from importlib.metadata import version


def test_the_compiled_core_is_there_and_of_this_version():
    from shoal._core import _native

    assert _native.__version__ == version("shoal")


def test_the_core_is_chosen_behind_one_list_of_names():
    from shoal import _core
    from shoal._core import _reference

    assert {name: getattr(_core, name) for name in _core.__all__} == {
        name: getattr(_reference, name) for name in ("Packer", "Stepper")
    }
