from PIL import Image

from pipelines.demo.demo_plan import DemoPlan
from pipelines.demo.photographs_demo import NUM_CAPTIONS, captions_to_draw


def test_captions_to_draw_are_some_of_the_folders_each_once(tmp_path):
    for number in range(40):
        Image.new("RGBA", (8, 8)).save(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.txt").write_text(f"Bird {number // 2}.\nde.utf8=Vogel {number // 2}.\n")
    Image.new("RGBA", (8, 8)).save(tmp_path / "without.png")
    captions = captions_to_draw(tmp_path)
    assert len(set(captions)) == len(captions) == NUM_CAPTIONS
    assert set(captions) <= {f"Bird {number}." for number in range(20)} and captions == captions_to_draw(tmp_path)


def test_a_plan_with_somebodys_own_pictures_trains_on_those(tmp_path):
    plan = DemoPlan(name="mine", output=tmp_path / "output", run_settings={}, own_pictures=tmp_path / "pictures")
    assert plan.pictures_to_train_on == tmp_path / "pictures"
