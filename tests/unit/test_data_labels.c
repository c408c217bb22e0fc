/* Data sets: flat splits with labels files, tars, and the traps that give wrong labels
 * (users_expect.md 5). */
#include "data_folder.h"

/* ---- flat splits ---- */

static void make_flat(void) {
    put_image(root, "train/n01/1.jpg", "grey.jpg");
    put_image(root, "train/n02/1.jpg", "grey.jpg");
    put_image(root, "train/n03/1.jpg", "grey.jpg");
    put_image(root, "val/v1.JPEG", "grey.jpg");
    put_image(root, "val/v2.JPEG", "grey.jpg");
    put_image(root, "val/v3.JPEG", "grey.jpg");
}

static void expect_flat(const char *labels, int64_t a, int64_t b, int64_t e) {
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    dataset_close(d);
    in_root(c.val_labels, "labels.txt");
    put_text(root, "labels.txt", labels);
    assert_ok(dataset_open(&c, "val", &classes, &d));
    assert_int_equal(dataset_count(d), 3);
    assert_int_equal(label_of(d, "v1"), a);
    assert_int_equal(label_of(d, "v2"), b);
    assert_int_equal(label_of(d, "v3"), e);
    dataset_close(d);
    class_list_free(&classes);
}

static void labels_files(void **state) {
    (void)state;
    make_flat();
    expect_flat("v1.JPEG 2\nv2.JPEG 0\nv3.JPEG 1\n", 2, 0, 1);
    expect_flat("val/v3.JPEG\tn01\r\nval/v2.JPEG\tn03\r\n\r\nval/v1.JPEG\tn02", 1, 2, 0);
    expect_flat("ImageId,PredictionString\nv1,n03 85 1 499 272 \nv2,n01 0 0 1 1 n01 2 2 3 "
                "3\nv3,n02 1 1 2 2\n",
                2, 0, 1);
    expect_flat("n02\nn02\nn01\n", 1, 1, 0); /* one name a line, in the order of file names */
}

static void labels_file_traps(void **state) {
    (void)state;
    static const struct {
        const char *labels, *message;
    } traps[] = {
        {"v1 0\nv2 1\n", "2 labels for 3 images; none for 'v3.JPEG'"},
        {"v1 0\nv2 1\nv3 2\nv4 0\n", "4 labels for 3 images; no image for 'v4'"},
        {"v1 0\nv2 1\nv2 2\n", "label the same image"},
        {"v1 0\nv2 1\nv3 3\n", "class index 3, but the 3 classes are 0 to 2"},
        {"v1 1\nv2 2\nv3 3\n", "count from 1"},
        {"1\n2\n3\n", "devkit"},
        {"490\n361\n171\n", "meta.mat"},
        {"0\n2\n1\n", "bare list of numbers"},
        {"n01\nn02\n", "2 labels for 3 images; none for"},
        {"n01\nn02\nn03\nn01\n", "4 labels for 3 images"},
        {"v1 n01\nv2 n02\nv3 n09\n", ":3: 'n09' is none of the 3 classes"},
        {"v1 n01\nn02\nv3 n03\n", ":2: expected 'name label'"},
        {"", "no labels"},
    };
    make_flat();
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    dataset_close(d);
    expect_error(&c, "val", &classes, STATUS_DATA, "lie flat, without class folders");
    assert_message("--val-labels");
    in_root(c.val_labels, "labels.txt");
    expect_error(&c, "val", &classes, STATUS_IO, "labels.txt");
    for (size_t i = 0; i < sizeof traps / sizeof traps[0]; i++) {
        put_text(root, "labels.txt", traps[i].labels);
        expect_error(&c, "val", &classes, STATUS_DATA, traps[i].message);
    }
    put_file(root, "labels.txt", "v1\0 0\n", 7);
    expect_error(&c, "val", &classes, STATUS_DATA, "not a text file");
    class_list_free(&classes);
    /* The labels file alone: names give the classes, numbers do when they start at 0. */
    put_text(root, "labels.txt", "v1 b\nv2 a\nv3 b\n");
    assert_ok(dataset_open(&c, "val", &classes, &d));
    expect_classes(&classes, "a b");
    dataset_close(d);
    class_list_free(&classes);
    put_text(root, "labels.txt", "v1 2\nv2 0\nv3 0\n");
    assert_ok(dataset_open(&c, "val", &classes, &d));
    expect_classes(&classes, "0 1 2");
    dataset_close(d);
    class_list_free(&classes);
    put_text(root, "labels.txt", "v1 2\nv2 1\nv3 1\n");
    expect_error(&c, "val", &classes, STATUS_DATA, "indices from 0 are expected");
}

static void kaggle_tree(void **state) {
    (void)state;
    put_image(root, "ILSVRC/Data/CLS-LOC/train/n01/1.JPEG", "grey.jpg");
    put_image(root, "ILSVRC/Data/CLS-LOC/train/n02/1.JPEG", "grey.jpg");
    put_image(root, "ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG", "grey.jpg");
    put_text(root, "LOC_val_solution.csv",
             "ImageId,PredictionString\nILSVRC2012_val_00000001,n02 1 2 3 4 \n");
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    dataset_close(d);
    assert_ok(dataset_open(&c, "val", &classes, &d));
    assert_int_equal(dataset_label(d, 0), 1);
    dataset_close(d);
    class_list_free(&classes);
}

/* ---- tars ---- */

static void make_tars(void) {
    TarBytes one = {0}, two = {0};
    tar_image(&one, "train/dog/2.jpg", "grey.jpg");
    tar_image(&one, "train/cat/train/1.jpg",
              "rgb_420.jpg"); /* a folder that only looks like a split */
    tar_image(&one, "val/dog/1.jpg", "grey.jpg");
    tar_file(&one, "train/dog/notes.txt", "x");
    tar_file(&one, "train/.hidden/3.jpg", "x");
    tar_finish(&one);
    tar_image(&two, "train/dog/1.jpg", "grey.jpg");
    tar_image(&two, "train/ant/1.jpg", "grey.jpg");
    tar_finish(&two);
    put_file(root, "one.tar", one.data, one.size);
    put_file(root, "two.tar", two.data, two.size);
    put_file(root, "set/train-1.tar", one.data, one.size);
    put_file(root, "set/train-2.tar", two.data, two.size);
    tar_drop(&one);
    tar_drop(&two);
}

static void tar_roots(void **state) {
    (void)state;
    char list[CONFIG_TEXT];
    make_tars();
    snprintf(list, sizeof list, "%s/one.tar", root);
    DataConfig c = config_of(list);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    expect_classes(&classes, "cat dog");
    assert_int_equal(dataset_count(d), 2);
    assert_int_equal(dataset_report(d).hidden_skipped, 1);
    assert_int_equal(dataset_report(d).other_files, 1);
    assert_true(strstr(dataset_name(d, 0), "one.tar:train/cat/train/1.jpg") != NULL);
    assert_int_equal(read_all(d), 2);
    dataset_close(d);
    class_list_free(&classes);
    expect_error(&c, "test", &classes, STATUS_DATA,
                 "no folder 'test' inside; it holds: train, val");

    snprintf(list, sizeof list, "%s/one.tar,%s/two.tar", root, root);
    c = config_of(list);
    assert_ok(dataset_open(&c, "train", &classes, &d));
    expect_classes(&classes, "ant cat dog");
    assert_int_equal(dataset_count(d), 4);
    assert_int_equal(label_of(d, "one.tar:train/dog/2.jpg"), 2);
    assert_int_equal(label_of(d, "two.tar:train/dog/1.jpg"), 2);
    dataset_close(d);
    assert_ok(dataset_open(&c, "val", &classes, &d)); /* only one part has it */
    assert_int_equal(dataset_count(d), 1);
    dataset_close(d);
    class_list_free(&classes);

    snprintf(list, sizeof list, "%s/one.tar,%s/one.tar", root, root);
    c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_DATA, "the same image twice");

    snprintf(list, sizeof list, "%s/set", root);
    c = config_of(list);
    assert_ok(dataset_open(&c, "train", &classes, &d));
    assert_int_equal(dataset_count(d), 4);
    dataset_close(d);
    class_list_free(&classes);
}

static void compressed_and_broken_tars(void **state) {
    (void)state;
    char list[CONFIG_TEXT];
    ClassList classes = {0};
    make_tars();
    put_file(root, "x.tar.gz", "\x1f\x8b\x08\0junk that is long enough to be a file", 41);
    snprintf(list, sizeof list, "%s/x.tar.gz", root);
    DataConfig c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_DATA, "gunzip it first");
    snprintf(list, sizeof list, "%s/one.tar,%s/x.tar.gz", root, root);
    c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_DATA, "gunzip it first");
    snprintf(list, sizeof list, "%s/one.tar,%s", root, root);
    c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_USAGE, "a folder in a list");
    snprintf(list, sizeof list, "%s/one.tar,%s/none.tar", root, root);
    c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_IO, "none.tar");
    put_image(root, "picture.tar", "grey.jpg");
    snprintf(list, sizeof list, "%s/picture.tar", root);
    c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_DATA, "not a tar archive, but a JPEG image");
}

static void allocation_failures_are_clean(void **state) {
    (void)state;
    make_flat();
    make_tars();
    char list[CONFIG_TEXT];
    snprintf(list, sizeof list, "%s/one.tar,%s/two.tar", root, root);
    DataConfig configs[3] = {config_of(root), config_of(root), config_of(list)};
    const char *splits[3] = {"train", "val", "train"};
    put_text(root, "labels.txt", "v1 b\nv2 a\nv3 b\n");
    put_text(root, "names.txt", "n01 x\nn02 y\n");
    in_root(configs[1].val_labels, "labels.txt");
    in_root(configs[0].class_names, "names.txt");
    int64_t live = mem_live();
    for (int i = 0; i < 3; i++) {
        for (int64_t n = 1;; n++) {
            ClassList classes = {0};
            Dataset *d;
            mem_fail_at(n);
            Status s = dataset_open(&configs[i], splits[i], &classes, &d);
            int pending = mem_fail_pending();
            mem_fail_at(0);
            if (s != (pending ? STATUS_OK : STATUS_MEMORY))
                fail_msg("%d, %d: %s", i, (int)n, status_message());
            dataset_close(d);
            class_list_free(&classes);
            assert_int_equal(mem_live(), live);
            if (pending) break;
            assert_true(n < 1000);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(labels_files), TEST(labels_file_traps),          TEST(kaggle_tree),
        TEST(tar_roots),    TEST(compressed_and_broken_tars), TEST(allocation_failures_are_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
