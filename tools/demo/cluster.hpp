// SPDX-License-Identifier: Apache-2.0
// cluster.hpp - the colours of a picture, clustered by kernels in unified memory.
//
// Model    The CPU puts the picture's colours into a std::pmr::vector on unified memory; kernels
//          label them, add up each cluster, and paint the result; the CPU computes the means in
//          between and reads the painted picture, all at the same pointers. No step copies
//          anything by hand.
// Failure  demo_failure if the library refuses something; a difference to the CPU's run is in the
//          report.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include <xmm/xmm.hpp>

#include "check.hpp"
#include "format.hpp"
#include "heat_map.hpp"
#include "image.hpp"
#include "kmeans.hpp"
#include "measure.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "sampler.hpp"

namespace xmm::demo {

// A picture as the clustering sees it, and what a plain CPU run makes of it.
struct cluster_input {
    std::vector<rgba> pixels;
    std::vector<colour> colours;
    colour_space space;
    clustering expected;
    std::vector<rgba> painted;  // what the CPU's run paints; alpha is the picture's
    std::uint32_t clusters = 0;
    std::uint32_t iterations = 0;

    [[nodiscard]] static constexpr std::size_t bytes_per_pixel() noexcept {
        return sizeof(colour) + sizeof(std::uint8_t) + sizeof(rgba);
    }
};

[[nodiscard]] inline cluster_input prepare_clustering(const image& picture, std::uint32_t clusters,
                                                      std::uint32_t iterations) {
    cluster_input out;
    out.pixels = picture.pixels;
    out.clusters = clusters;
    out.iterations = iterations;
    out.colours.reserve(picture.pixels.size());
    for (const rgba& pixel : picture.pixels) {
        out.colours.push_back(out.space.from(pixel));
    }
    out.expected = cluster_on_cpu(out.colours, clusters, iterations);
    const auto palette = palette_of(out.expected.centres, out.space);
    out.painted.reserve(picture.pixels.size());
    for (std::size_t i = 0; i < out.pixels.size(); ++i) {
        out.painted.push_back(palette[out.expected.labels[i]]);
        out.painted.back().a = out.pixels[i].a;
    }
    return out;
}

// What was clustered: a picture of few colours leaves clusters without a pixel, which are not counted.
[[nodiscard]] inline std::string describe_clustering(std::span<const std::uint8_t> labels,
                                                     std::uint32_t steps) {
    std::array<bool, most_clusters> is_used{};
    for (const std::uint8_t label : labels) {
        is_used[label] = true;
    }
    const auto colours = std::count(is_used.begin(), is_used.end(), true);
    return fmt::format("{} pixel{}, {} colour{}, {} step{}", show_count(labels.size()),
                       labels.size() == 1 ? "" : "s", colours, colours == 1 ? "" : "s", steps,
                       steps == 1 ? "" : "s");
}

class cluster_run {
public:
    cluster_run(space& memory, node_id device, const cluster_input& input)
        : memory_{memory},
          input_{input},
          queue_{check(memory.make_queue(device), "make a queue")},
          unified_{port_of(memory), no_node, page_bytes} {}
    cluster_run(const cluster_run&) = delete;
    cluster_run& operator=(const cluster_run&) = delete;
    ~cluster_run() { (void)queue_.synchronize(); }

    run_report run(const std::string& title, progress_style style, heat_map& places) {
        run_report out;
        progress_bar bar{title, input_.iterations + 2u, style};
        const std::size_t count = input_.colours.size();
        std::pmr::vector<colour> colours{&unified_};
        std::pmr::vector<std::uint8_t> labels{&unified_};
        std::pmr::vector<rgba> painted{&unified_};
        std::pmr::vector<std::int64_t> sums{&unified_};
        colours.reserve(count);
        labels.reserve(count);
        painted.reserve(count);
        const run_clock clock{memory_, queue_};
        residency_sampler sampler{
            memory_,
            queue_,
            {{"colours", {to_address(colours.data()), count * sizeof(colour)}},
             {"labels", {to_address(labels.data()), count}},
             {"painted", {to_address(painted.data()), count * sizeof(rgba)}}}};
        colours.assign(input_.colours.begin(), input_.colours.end());
        labels.assign(count, 0);
        painted.assign(input_.pixels.begin(), input_.pixels.end());
        sums.assign(most_clusters * sum_fields, 0);
        bar.show(1);

        centroids centres = seed_centroids({colours.data(), count}, input_.clusters);
        std::uint32_t iterations = 0;
        for (bool has_settled = false; iterations < input_.iterations && !has_settled;
             ++iterations) {
            std::fill(sums.begin(), sums.end(), 0);
            assign(colours, labels, sums, centres);
            const centroids next = next_centroids(centres, sums_of(sums));
            has_settled = next == centres;
            if (!has_settled && iterations + 1 < input_.iterations) {
                centres = next;
            }
            bar.show(iterations + 2u);
        }
        paint(labels, painted, palette_of(centres, input_.space));
        bar.show(input_.iterations + 2u);

        const bool labels_equal =
            std::equal(labels.begin(), labels.end(), input_.expected.labels.begin());
        const bool painted_equal =
            std::equal(painted.begin(), painted.end(), input_.painted.begin());
        clock.fill(out);
        places = sampler.finish(title);
        count_places(places, out);
        picture_.assign(painted.begin(), painted.end());
        out.part = "k-means";
        out.is_correct = labels_equal && painted_equal && centres == input_.expected.centres &&
                         iterations == input_.expected.iterations;
        out.check = fmt::format("{}: {}", describe_clustering(input_.expected.labels, iterations),
                                out.is_correct ? "labels, centroids and picture as the CPU's"
                                               : "differs from the CPU's run");
        out.data_bytes = count * cluster_input::bytes_per_pixel();
        out.work_bytes = iterations * count * (sizeof(colour) + 1) + count * (2 * sizeof(rgba) + 1);
        return out;
    }

    // The pixels that the run painted.
    [[nodiscard]] const std::vector<rgba>& picture() const noexcept { return picture_; }

private:
    static constexpr std::size_t sum_fields = 4;
    static constexpr std::size_t pixels_at_once =
        4096;  // while their pages are held in place: 0.1 ms

    void assign(const std::pmr::vector<colour>& colours, std::pmr::vector<std::uint8_t>& labels,
                std::pmr::vector<std::int64_t>& sums, const centroids& centres) {
        const device_view<const colour> from{colours.data(), colours.size()};
        const device_view<std::uint8_t> to{labels.data(), labels.size()};
        const device_view<std::int64_t> totals{sums.data(), sums.size()};
        const auto kernel = [from, to, totals, centres](std::size_t first, std::size_t last) {
            cluster_sums mine{};
            for (std::size_t at = first; at < last; at += pixels_at_once) {
                const std::size_t count = std::min(pixels_at_once, last - at);
                zip_spans(
                    [&](std::span<const colour> some, std::span<std::uint8_t> marks) {
                        assign_pixels(some.data(), marks.data(), some.size(), centres, mine);
                    },
                    from.subview(at, count), to.subview(at, count));
            }
            for (std::uint32_t k = 0; k < centres.count; ++k) {
                totals.fetch_add(k * sum_fields + 0, mine[k].l);
                totals.fetch_add(k * sum_fields + 1, mine[k].a);
                totals.fetch_add(k * sum_fields + 2, mine[k].b);
                totals.fetch_add(k * sum_fields + 3, mine[k].pixels);
            }
        };
        check(launch(queue_, {reads(colours), writes(labels), reads_writes(sums)},
                     [&](soft::stream& on) { return on.parallel_for(from.size(), kernel); }),
              "launch the labelling kernel");
        check(queue_.synchronize(), "wait for the labels");
    }

    [[nodiscard]] static cluster_sums sums_of(const std::pmr::vector<std::int64_t>& sums) {
        cluster_sums out{};
        for (std::size_t k = 0; k < most_clusters; ++k) {
            const std::int64_t* one = sums.data() + k * sum_fields;
            out[k] = {one[0], one[1], one[2], one[3]};
        }
        return out;
    }

    // Keeps each pixel's alpha.
    void paint(const std::pmr::vector<std::uint8_t>& labels, std::pmr::vector<rgba>& painted,
               const std::array<rgba, most_clusters>& palette) {
        const device_view<const std::uint8_t> from{labels.data(), labels.size()};
        const device_view<rgba> to{painted.data(), painted.size()};
        const auto kernel = [from, to, palette](std::size_t first, std::size_t last) {
            zip_spans(
                [&](std::span<const std::uint8_t> marks, std::span<rgba> pixels) {
                    for (std::size_t i = 0; i < marks.size(); ++i) {
                        const rgba& one = palette[marks[i]];
                        pixels[i] = {one.r, one.g, one.b, pixels[i].a};
                    }
                },
                from.subview(first, last - first), to.subview(first, last - first));
        };
        check(launch(queue_, {reads(labels), reads_writes(painted)},
                     [&](soft::stream& on) { return on.parallel_for(to.size(), kernel); }),
              "launch the painting kernel");
        check(queue_.synchronize(), "wait for the picture");
    }

    space& memory_;
    const cluster_input& input_;
    queue queue_;
    unified_resource unified_;
    std::vector<rgba> picture_;
};

}  // namespace xmm::demo
