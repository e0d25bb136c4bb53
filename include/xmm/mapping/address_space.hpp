// SPDX-License-Identifier: Apache-2.0
// address_space.hpp - a logical map with the nodes attached to it.
//
// Model    Owns regions, page records, nodes and the table of uses; borrows the backends. Placement is
//          plugged in from above: it gets the space and moves its pages; nothing here moves one.
// Threads  map, unmap and attach hold the address_space lock while they change the lists; lookups do not.
//          Nodes are added only, and published by their count.
// Failure  map and attach are all or nothing.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <span>

#include <xmm/concepts/backend_table.hpp>
#include <xmm/mapping/logical_map.hpp>
#include <xmm/mapping/node.hpp>
#include <xmm/mapping/use.hpp>
#include <xmm/os/host_memory.hpp>

namespace xmm {

// Where pages are wanted: on one node, or on whichever host they happen to be.
struct place {
    node* at = nullptr;
    bool is_any_host = false;
};

// Who removes a region: the heap whose arena it is, the user, or the end of the space.
enum class region_kind : std::uint8_t { any, plain, arena };

class address_space {
public:
    static constexpr unsigned max_backends = 8;

    address_space() noexcept : uses_{map_} {}
    address_space(const address_space&) = delete;
    address_space& operator=(const address_space&) = delete;

    // Every region must have been unmapped, every queue of the user's be idle.
    ~address_space() {
        XMM_ASSERT(regions_.is_empty(), "a space was destroyed with regions in it");
        for (unsigned slot = 0; slot < node_count(); ++slot) {
            destroy_queues(nodes_[slot]);
        }
    }

    // ---- nodes

    // Hosts come first, and the first backend that makes host frames serves them all.
    [[nodiscard]] status attach_host(backend_ref driver, node_id id) noexcept {
        std::lock_guard guard{lock_};
        const unsigned slot = node_count();
        XMM_ASSERT(slot == host_count_, "hosts are attached before devices");
        status outcome = prepare_node_locked(driver, id, true, slot);
        if (outcome) {
            ++host_count_;
            publish_nodes_locked(slot + 1);
        }
        return outcome;
    }

    // All devices of one driver, or none: they are seen once all are ready. Its view of the regions that exist
    // already is asked for first.
    [[nodiscard]] status attach_devices(backend_ref driver) noexcept {
        std::lock_guard guard{lock_};
        if (backend_count_ == max_backends) {
            return fail(errc::no_memory, "too many drivers in one space");
        }
        if (is_attached_locked(driver)) {
            return fail(errc::busy, "this driver is attached already");
        }
        status outcome;
        std::size_t claimed = 0;
        regions_.for_each([&](region& one) {
            if (outcome) {
                if (auto claim = driver.va_examine(one.va, one.granule_bytes)) {
                    ++claimed;
                } else {
                    outcome = claim.error();
                }
            }
        });
        unsigned made = node_count();
        if (outcome) {
            for (node_id id : driver.nodes()) {
                outcome = prepare_node_locked(driver, id, false, made);
                if (!outcome) {
                    break;
                }
                ++made;
            }
        }
        if (!outcome) {
            for (unsigned slot = node_count(); slot < made; ++slot) {
                destroy_queues(nodes_[slot]);
            }
            regions_.for_each([&](region& one) {
                if (claimed > 0) {
                    --claimed;
                    driver.va_release(one.va);
                }
            });
            return outcome;
        }
        backends_[backend_count_++] = driver;
        publish_nodes_locked(made);
        return {};
    }

    [[nodiscard]] bool is_attached(backend_ref driver) noexcept {
        std::lock_guard guard{lock_};
        return is_attached_locked(driver);
    }
    [[nodiscard]] unsigned node_count() const noexcept {
        // acquire: pairs with the release in publish_nodes_locked; a node is complete before it is counted.
        return node_count_.load(std::memory_order_acquire);
    }
    [[nodiscard]] unsigned host_count() const noexcept { return host_count_; }
    [[nodiscard]] node& at_slot(unsigned slot) noexcept { return nodes_[slot]; }
    // Any host stands for `any_host`; null if the node is not attached.
    [[nodiscard]] node* find_node(node_id id) noexcept {
        if (id == any_host && host_count_ > 0) {
            return &nodes_[0];
        }
        for (unsigned slot = 0; slot < node_count(); ++slot) {
            if (nodes_[slot].id == id) {
                return &nodes_[slot];
            }
        }
        return nullptr;
    }
    // `at` is null if the node is not attached.
    [[nodiscard]] place find_place(node_id id) noexcept { return {find_node(id), id == any_host}; }
    // What the nodes there may hold altogether.
    [[nodiscard]] std::size_t limit_of(place where) const noexcept {
        std::size_t sum = where.at->book->limit();
        for (unsigned slot = 0; slot < host_count_ && where.is_any_host; ++slot) {
            if (&nodes_[slot] != where.at) {
                const std::size_t more = nodes_[slot].book->limit();
                sum += std::min(more, SIZE_MAX - sum);
            }
        }
        return sum;
    }
    // The frame that the page, whose lock is held, has there; null if none.
    [[nodiscard]] frame_record* frame_at(granule& page, place where) noexcept {
        if (!where.is_any_host) {
            return page.frames[where.at->slot];
        }
        for (unsigned slot = 0; slot < host_count_; ++slot) {
            if (page.frames[slot] != nullptr) {
                return page.frames[slot];
            }
        }
        return nullptr;
    }

    // Where pages of a device go when they leave it, and where it maps host memory from.
    [[nodiscard]] node& host_near(const node& one) noexcept {
        if (one.is_host) {
            return nodes_[one.slot];
        }
        for (unsigned slot = 0; slot < host_count_; ++slot) {
            if (nodes_[slot].id == one.about.nearest_host) {
                return nodes_[slot];
            }
        }
        return nodes_[0];
    }

    // The device whose queues carry what stays on the hosts: the first that is not lost. Null if there is
    // none: then the CPU does it.
    [[nodiscard]] node* host_carrier() noexcept {
        for (unsigned slot = host_count_; slot < node_count(); ++slot) {
            if (nodes_[slot].driver.record(nodes_[slot].queues[node::urgent_in])) {
                return &nodes_[slot];
            }
        }
        return nullptr;
    }

    // ---- regions

    // What regions move in unless told: at most 1/16 of the smallest device's limit. A power of two, whatever the
    // drivers say.
    [[nodiscard]] std::size_t default_granule() noexcept {
        std::size_t bytes = std::size_t{32} << 20;
        for (unsigned slot = host_count_; slot < node_count(); ++slot) {
            const node& one = nodes_[slot];
            bytes = std::min({bytes, std::bit_floor(one.about.granule_bytes),
                              std::bit_floor(one.book->limit() / 16)});
        }
        return std::max(bytes, page_bytes);
    }

    // Reserves addresses on which all backends agree, and makes the records: no page has a frame yet.
    [[nodiscard]] result<region*> map(std::size_t bytes, const map_options& wanted) noexcept {
        const std::size_t whole = align_up(bytes, page_bytes);
        std::size_t granule_bytes =
            wanted.granule_bytes != 0 ? wanted.granule_bytes : default_granule();
        granule_bytes = std::min(granule_bytes, std::bit_ceil(whole));
        std::lock_guard guard{lock_};
        region* made = map_.make_region();
        if (made == nullptr) {
            return fail(errc::no_memory, "the host has no memory for a region's record");
        }
        const status outcome = with(addresses_lock_, [&] {
            return add_region_locked(*made, whole, granule_bytes, wanted);
        });
        if (!outcome) {
            if (!made->va.is_empty()) {
                release_locked(made->va);
            }
            map_.drop_region(*made);
            return outcome;
        }
        regions_.push_back(*made);
        return made;
    }

    // The region's pages must all be released: no frame, no mapping.
    void unmap(region& one) noexcept {
        std::lock_guard guard{lock_};
        regions_.remove(one);
        with(addresses_lock_, [&] { leaving_.push_back(one); });
        map_.remove(one.va);
        release_locked(one.va);
        with(addresses_lock_, [&] { leaving_.remove(one); });
        map_.drop_region(one);
    }

    // The region that starts at this address, for its one remover: a second call answers not_mapped.
    // invalid_argument: it is of another kind than was meant; it stays whoever's it is.
    [[nodiscard]] result<region*> claim_for_unmap(address start,
                                                  region_kind meant = region_kind::any) noexcept {
        const status missing = fail(errc::not_mapped, "no region of this space starts there");
        granule* one = map_.find(start);
        if (one == nullptr) {
            return missing;
        }
        std::lock_guard guard{lock_};
        region* found = with(one->lock, [&] { return one->owner; });
        if (found == nullptr || found->va.begin != start) {
            return missing;
        }
        // Before it is looked at who else removes it: a heap that does finds it unclaimed.
        if (meant != region_kind::any && found->hints.is_arena != (meant == region_kind::arena)) {
            return fail(errc::invalid_argument,
                        found->hints.is_arena ? "these addresses belong to a heap: free its blocks"
                                              : "this region is no heap's");
        }
        if (found->is_leaving) {
            return missing;
        }
        found->is_leaving = true;
        return found;
    }
    void give_up_unmap(region& one) noexcept {
        with(lock_, [&] { one.is_leaving = false; });
    }
    // The region that begins first at or above an address, as it was at that moment; empty if there is none.
    // So one walks over the regions with no lock held between them; those mapped meanwhile may be missed.
    [[nodiscard]] region_glance next_region(address from) noexcept {
        region_glance first;
        std::lock_guard guard{lock_};
        regions_.for_each([&](const region& one) {
            if (one.va.begin >= from && (first.va.is_empty() || one.va.begin < first.va.begin)) {
                first = {one.va, one.granule_bytes, one.name};
            }
        });
        return first;
    }

    // ---- pages

    [[nodiscard]] granule* find(address at) const noexcept { return map_.find(at); }
    // Whether a range starts in no region and is mapped in this process: addresses that a region is just leaving, or
    // coming to, are not taken for plain memory. Waits for no release of addresses, which may itself wait for a device.
    [[nodiscard]] bool is_plain_memory(va_range range) noexcept {
        std::lock_guard guard{addresses_lock_};
        bool is_leaving = false;
        leaving_.for_each([&](const region& one) { is_leaving |= one.va.overlaps(range); });
        return !is_leaving && map_.find(range.begin) == nullptr && xmm::is_mapped(range);
    }

    // Runs fn(granule&) with the page lock held on the record that covers the address now; false if no
    // memory is there: no region, or a part of an arena that has no frame.
    template <class Fn>
    bool with_granule(address at, Fn&& fn) noexcept {
        granule* one = map_.find(at);
        if (one == nullptr) {
            return false;
        }
        std::lock_guard guard{one->lock};
        if (!one->is_memory_locked(at)) {
            return false;
        }
        fn(*one);
        return true;
    }
    // Whether each page of the range belongs to some region.
    [[nodiscard]] bool is_mapped(va_range range) const noexcept {
        for (address at = align_down(range.begin, page_bytes); at < range.end(); at += page_bytes) {
            if (map_.find(at) == nullptr) {
                return false;
            }
        }
        return true;
    }

    [[nodiscard]] use_table& uses() noexcept { return uses_; }
    [[nodiscard]] std::size_t granule_count() const noexcept { return map_.granule_count(); }

    // Checks every record; slow. Callers hold no lock; other threads may go on.
    [[nodiscard]] bool is_valid() noexcept {
        bool all = true;
        std::lock_guard guard{lock_};
        regions_.for_each([&](region& one) {
            for (address at = one.va.begin; at < one.va.end();) {
                const va_range span = one.granule_at(at);
                granule* record = map_.find(at);
                all = all && record != nullptr;
                if (record != nullptr) {
                    std::lock_guard page{record->lock};
                    // A record in transit is between two states; released ones are on their way out.
                    all = all && (record->is_moving() || record->is_valid_locked());
                }
                at = span.end();
            }
        });
        return all;
    }

private:
    bool is_attached_locked(backend_ref driver) const noexcept {
        return std::find(backends_.begin(), backends_.begin() + backend_count_, driver) !=
               backends_.begin() + backend_count_;
    }

    // GMM's examine-and-retry: addresses that a backend declined stay reserved until the loop ends, so
    // that the next try gets others.
    static constexpr unsigned examine_tries = 10;

    result<va_range> reserve_locked(std::size_t bytes, std::size_t alignment) noexcept {
        va_range refused[examine_tries];
        unsigned refused_count = 0;
        status last = fail(errc::unsupported, "no backend is attached to propose addresses");
        va_range found;
        for (unsigned attempt = 0;
             attempt < examine_tries && found.is_empty() && backend_count_ > 0; ++attempt) {
            result<va_range> proposed = backends_[0].va_examine({0, bytes}, alignment);
            if (!proposed) {
                last = proposed.error();
                break;
            }
            unsigned agreed = 1;
            while (agreed < backend_count_) {
                result<va_range> claim = backends_[agreed].va_examine(*proposed, alignment);
                if (!claim) {
                    last = claim.error();
                    break;
                }
                ++agreed;
            }
            if (agreed == backend_count_ && radix_tree<granule>::covers(*proposed)) {
                found = *proposed;
                break;
            }
            if (agreed == backend_count_) {
                last = fail(errc::no_memory, "the drivers propose addresses beyond 48 bits only");
            }
            for (unsigned i = 1; i < agreed; ++i) {
                backends_[i].va_release(*proposed);
            }
            refused[refused_count++] = *proposed;
        }
        for (unsigned i = 0; i < refused_count; ++i) {
            backends_[0].va_release(refused[i]);
        }
        if (found.is_empty()) {
            return last.is_ok() ? fail(errc::no_memory, "no address suits all devices") : last;
        }
        return found;
    }
    // On a failure the region has its addresses, if some were to be had.
    status add_region_locked(region& made, std::size_t bytes, std::size_t granule_bytes,
                             const map_options& wanted) noexcept {
        made.va = {};
        result<va_range> where = reserve_locked(bytes, std::max(wanted.alignment, granule_bytes));
        if (!where) {
            return where.error();
        }
        made.va = *where;
        made.granule_bytes = granule_bytes;
        made.is_leaving = false;
        made.hints = wanted;
        made.name = {};
        std::strncpy(made.name.data(), wanted.name, made.name.size() - 1);
        made.hints.name = made.name.data();
        const node* prefers = find_node(wanted.preferred);
        return map_.add(made, [&](granule& one) {
            one.is_read_mostly = wanted.is_read_mostly;
            one.preferred = prefers != nullptr ? prefers->slot : no_slot;
            one.is_fixed = wanted.fixed != no_node;
            one.is_arena = wanted.is_arena;
        });
    }
    void release_locked(va_range range) noexcept {
        for (unsigned i = backend_count_; i-- > 0;) {
            backends_[i].va_release(range);
        }
    }

    // Fills a slot that nobody sees yet.
    status prepare_node_locked(backend_ref driver, node_id id, bool is_host,
                               unsigned slot) noexcept {
        if (slot == max_slots) {
            return fail(errc::no_memory, "too many nodes in one space");
        }
        result<node_description> about = driver.describe(id);
        if (!about) {
            return about.error();
        }
        node& added = nodes_[slot];
        added.id = id;
        added.slot = static_cast<std::uint8_t>(slot);
        added.is_host = is_host;
        added.driver = driver;
        added.about = *about;
        added.book = ledger_of(id, about->bytes);
        if (added.book == nullptr) {
            return fail(errc::no_memory, "the host has no memory for a node's ledger");
        }
        // Hosts have no queues: what moves among them goes through a device's.
        for (unsigned use = 0; use < node::queue_count && !is_host; ++use) {
            const bool is_quiet = use == node::quiet_in || use == node::quiet_out;
            result<queue_id> made = driver.queue_create(
                id, is_quiet ? queue_priority::background : queue_priority::urgent);
            if (!made) {
                destroy_queues(added);
                return made.error();
            }
            added.queues[use] = *made;
        }
        // Free host frames are kept for the next demotion, as many as the driver says: the system wants them, too.
        added.pool.open(driver, id, added.slot, is_host, *added.book,
                        is_host ? added.about.kept_bytes : SIZE_MAX);
        return {};
    }
    void publish_nodes_locked(unsigned count) noexcept {
        // release: pairs with the acquire in node_count.
        node_count_.store(count, std::memory_order_release);
    }

    static void destroy_queues(node& one) noexcept {
        for (queue_id& queue : one.queues) {
            if (queue.value != 0) {
                one.driver.queue_destroy(queue);
                queue = {};
            }
        }
    }

    logical_map map_;
    use_table uses_;
    ranked_mutex<lock_rank::address_space> lock_;  // attach, and the two lists below
    list<region, &region::link> regions_;
    // Taken inside the one above, and held while addresses are had for a region until its pages are found at them; not
    // while they are given up. Guards the next.
    ranked_mutex<lock_rank::address_space> addresses_lock_;
    // Out of the map, their addresses not yet the backends' again.
    list<region, &region::link> leaving_;
    std::array<backend_ref, max_backends> backends_{};
    unsigned backend_count_ = 0;
    std::array<node, max_slots> nodes_;  // complete up to node_count_, constant from then on
    std::atomic<unsigned> node_count_{0};
    unsigned host_count_ = 0;  // constant once a device is attached
};

}  // namespace xmm
